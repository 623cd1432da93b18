/* srun --container-remap-root of a user who is not root: the task believes to be root, and has no right more.
 *
 * The kernel answers the calls that ask for ids with 0, and those that change ids or owners with success,
 * without doing anything. Installers such as dpkg and tar then work in a container whose files all belong to
 * its user. This filter is added to slurmd's and takes calls away only. A user namespace would need setns in
 * slurmd's filter, and there tasks would have capabilities with which they leave their root directory.
 */
#ifndef NEOCLOUD_APPEAR_AS_ROOT_H
#define NEOCLOUD_APPEAR_AS_ROOT_H

#include "jail.h"

/* Needs no_new_privs. slurmd's filter has refused other ABIs already, which have other numbers. */
static int appear_as_root(void)
{
	static const unsigned short answered[] = {
		SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_setuid, SYS_setgid, SYS_setreuid,
		SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_setgroups,
		SYS_capset, SYS_chown, SYS_fchown, SYS_lchown, SYS_fchownat,
	};
	enum { CALLS = sizeof answered / sizeof *answered };
	struct sock_filter code[2 * CALLS + 2];
	struct sock_fprog program = {0, code};
	int n = 0, i;

	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (i = 0; i < CALLS; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, answered[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	program.len = n;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

#endif
