/* What happens before any program of the tenant runs. The one place that enters the shared root and gives up
 * capabilities: enter-root, the job plugin, the PAM module of sshd and the daemons' own view all use it.
 *
 * Only x86-64, like the image. Failures are reported by errno; nothing here prints.
 */
#ifndef NEOCLOUD_JAIL_H
#define NEOCLOUD_JAIL_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define JAIL "/jail"
#define BIT(capability) (1ULL << (capability))

/* What root of a tenant keeps: enough for apt-get, pip, sudo, ssh and ping, nothing that reaches a mount, a
 * device, another root directory or another user's process. */
#define TENANT_CAPABILITIES                                                                      \
	(BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | BIT(CAP_KILL) | \
	 BIT(CAP_SETGID) | BIT(CAP_SETUID) | BIT(CAP_SETPCAP) | BIT(CAP_NET_BIND_SERVICE) |           \
	 BIT(CAP_NET_RAW) | BIT(CAP_AUDIT_WRITE) | BIT(CAP_SETFCAP))

/* slurmd and sshd: one more, with which they put tasks and sessions into the shared root. Having more than
 * any tenant's process also makes the kernel refuse tenants ptrace and /proc/<pid>/root of the daemons. */
#define DAEMON_CAPABILITIES (TENANT_CAPABILITIES | BIT(CAP_SYS_CHROOT))

static int read_capabilities(struct __user_cap_data_struct data[2])
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};

	return syscall(SYS_capget, &header, data);
}

static int may_mount(void)
{
	struct __user_cap_data_struct data[2];

	return !read_capabilities(data) && (data[0].effective & BIT(CAP_SYS_ADMIN));
}

/* Whatever is executed from here on has at most `kept`. What this process holds itself stays. */
static int limit_programs(unsigned long long kept)
{
	int capability;

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
		return -1;
	for (capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
		if (!(capability < 64 && (kept & BIT(capability))) &&
		    prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
			return -1;
	return 0;
}

/* This process, and whatever it executes, has at most `kept`. */
static int limit_capabilities(unsigned long long kept)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	int word;

	if (limit_programs(kept) || read_capabilities(data))
		return -1;
	for (word = 0; word < 2; word++) {
		data[word].permitted &= kept >> (32 * word);
		data[word].effective &= kept >> (32 * word);
		data[word].inheritable = 0;
	}
	return syscall(SYS_capset, &header, data);
}

/* The calls that a container has only because it may mount, dropped permanently: a tenant's root could else
 * become root of a user namespace of its own and mount there. And those that reach what the machine's root
 * shares with a container's: keyrings and the kernel's log. Needs SYS_ADMIN or no_new_privs. */
static int refuse_kernel_calls(void)
{
	static const unsigned short refused[] = {
		SYS_mount, SYS_umount2, SYS_pivot_root, SYS_unshare, SYS_setns, SYS_bpf, SYS_perf_event_open,
		SYS_fanotify_init, SYS_lookup_dcookie, SYS_quotactl, SYS_sethostname, SYS_setdomainname,
		SYS_open_by_handle_at, SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module,
		SYS_delete_module, SYS_iopl, SYS_ioperm, SYS_acct, SYS_swapon, SYS_swapoff, SYS_reboot,
		SYS_settimeofday, SYS_clock_settime, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_syslog,
		428 /* open_tree */, 429 /* move_mount */, 430 /* fsopen */, 431 /* fsconfig */,
		432 /* fsmount */, 433 /* fspick */, 442 /* mount_setattr */, 443 /* quotactl_fd */,
		467 /* open_tree_attr */,
	};
	enum { CALLS = sizeof refused / sizeof *refused, CLONE3 = 435, X32 = 0x40000000 };
	static const unsigned int namespaces = 0x7E020000; /* every CLONE_NEW... that clone takes */
	struct sock_filter code[2 * CALLS + 16];
	struct sock_fprog program = {0, code};
	int n = 0, i;

#define DO(what, value) code[n++] = (struct sock_filter)BPF_STMT(what, value)
#define IF(what, value, yes, no) code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | (what) | BPF_K, value, yes, no)
#define REFUSE(error) DO(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define LOAD(field) DO(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
	LOAD(arch);
	IF(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0); /* other ABIs have other numbers for the same calls */
	REFUSE(ENOSYS);
	LOAD(nr);
	IF(BPF_JGE, X32, 0, 1);
	REFUSE(ENOSYS);
	IF(BPF_JEQ, CLONE3, 0, 1); /* its flags lie in memory; libraries fall back to clone */
	REFUSE(ENOSYS);
	for (i = 0; i < CALLS; i++) {
		IF(BPF_JEQ, refused[i], 0, 1);
		REFUSE(EPERM);
	}
	IF(BPF_JEQ, SYS_clone, 0, 3);
	LOAD(args[0]);
	IF(BPF_JSET, namespaces, 0, 1);
	REFUSE(EPERM);
	DO(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
#undef DO
#undef IF
#undef REFUSE
#undef LOAD
	program.len = n;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

/* A folder or a file of the daemons' root that stays open would be a way back. Pipes and sockets stay. */
static void close_files_on_exec(void)
{
	int fd, last = (int)sysconf(_SC_OPEN_MAX);
	struct stat about;

	for (fd = 3; fd < last && fd < 65536; fd++)
		if (!fstat(fd, &about) && !S_ISFIFO(about.st_mode) && !S_ISSOCK(about.st_mode))
			fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* A mount namespace in which nothing but `root` is left. For who may mount. */
static int only_shared_root(const char *root)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	return chdir(root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/") ? -1 : 0;
}

/* `root`, which is JAIL or a job's view of it, becomes "/" of this process. Who may mount gets a mount namespace
 * in which nothing else is left; others change their root directory and lose, with limit_capabilities, the right
 * to do so again. */
static int enter_shared_root(const char *root)
{
	close_files_on_exec();
	if (!may_mount())
		return chdir(root) || chroot(".") || chdir("/") ? -1 : 0;
	return only_shared_root(root) ? -1 : refuse_kernel_calls();
}

#endif
