/* shared-root: mount over the shared root, show its folders to slurmd, and give each job a view of its own.
 *
 * Users own every folder and file in the shared root and may swap them for links at any moment, from another
 * node, too. So each path in it is walked one name at a time from a descriptor of /jail, no link is ever
 * followed, and mounts are put at the descriptor that was found, not at its path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "job_groups.h"
#include "mount_server.h"

#define JAIL "/jail"
#define LEAST_MIB 16 /* of a job's /tmp and /dev/shm: libraries put a few files there */
#define MAX_FOLDERS 256 /* at the top and in /opt: each that is shown is a mount of the host's kernel */
#define FOLDER (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* Of the kernel's headers, which may be older than the kernel. */
enum { CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_MOUNT_SETATTR = 442 };
enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, FROM_DESCRIPTOR = 0x04, TO_DESCRIPTOR = 0x40 };
enum { ATTRIBUTE_READ_ONLY = 1, ATTRIBUTE_NO_DEVICES = 4 };
struct attributes {
	unsigned long long set, clear, propagation, userns;
};

static int failed(const char *what)
{
	fprintf(stderr, "shared-root: %s: %s\n", what, strerror(errno));
	return -1;
}

/* The folder at `path` below `here`, or, with `last`, the one that holds it and the last name. */
static int walk_from(int here, const char *path, int make, char last[NAME_MAX + 1])
{
	int next;
	char name[NAME_MAX + 1];

	while (here >= 0 && *path) {
		size_t length = strcspn(path, "/");
		const char *rest = path + length + strspn(path + length, "/");

		if (!length || length > NAME_MAX) {
			path = rest;
			continue;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		if (!strcmp(name, ".") || !strcmp(name, "..")) {
			errno = EINVAL;
			return -1;
		}
		path = rest;
		if (last && !*path) {
			strcpy(last, name);
			return here;
		}
		next = openat(here, name, FOLDER);
		if (next < 0 && errno == ENOENT && make && !mkdirat(here, name, 0755))
			next = openat(here, name, FOLDER);
		close(here);
		here = next;
	}
	if (here >= 0 && last) {
		errno = EINVAL;
		return -1;
	}
	return here;
}

/* The same from the shared root. */
static int walk(const char *path, int make, char last[NAME_MAX + 1])
{
	return walk_from(open(JAIL, FOLDER), path, make, last);
}

/* A regular file to mount at; what lies there instead is replaced, unless it is a folder. */
static int file_at(const char *path)
{
	char name[NAME_MAX + 1];
	int folder = walk(path, 1, name), made;
	struct stat about;

	if (folder < 0)
		return -1;
	if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) || !S_ISREG(about.st_mode)) {
		unlinkat(folder, name, 0);
		made = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (made < 0)
			return -1;
		close(made);
	}
	return openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static int attach(int tree, int target)
{
	return syscall(CALL_MOVE_MOUNT, tree, "", target, "", FROM_DESCRIPTOR | TO_DESCRIPTOR);
}

static int bind_at(const char *source, const char *path, unsigned long long set)
{
	struct attributes attributes = {set, 0, 0, 0};
	struct stat about, target_about;
	int tree, target;

	if (stat(source, &about))
		return failed(source);
	target = S_ISDIR(about.st_mode) ? walk(path, 1, NULL) : file_at(path);
	if (target < 0 || fstat(target, &target_about))
		return failed(path);
	if (!S_ISDIR(about.st_mode) && !S_ISREG(target_about.st_mode)) {
		errno = ELOOP;
		return failed(path);
	}
	tree = syscall(CALL_OPEN_TREE, AT_FDCWD, source, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
	if (tree < 0)
		return failed(source);
	if (set && syscall(CALL_MOUNT_SETATTR, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &attributes,
			   sizeof attributes))
		return failed("cannot set attributes");
	return attach(tree, target) ? failed(path) : 0;
}

static int memory_on(int target, const char *path, int flags, const char *options)
{
	char place[64];
	int result;

	if (target < 0)
		return failed(path);
	snprintf(place, sizeof place, "/proc/self/fd/%d", target);
	result = mount("tmpfs", place, "tmpfs", MS_NOSUID | flags, options) ? failed(path) : 0;
	close(target);
	return result;
}

static int memory_at(const char *path, const char *options)
{
	return memory_on(walk(path, 1, NULL), path, 0, options);
}

static int link_at(const char *text, const char *path)
{
	char name[NAME_MAX + 1];
	int folder = walk(path, 1, name);

	return folder < 0 || symlinkat(text, folder, name) ? failed(path) : 0;
}

/* A new file with the time in it, in place of any that is there. */
static int stamp_at(const char *path)
{
	char name[NAME_MAX + 1], text[32];
	int folder = walk(path, 1, name), file;
	int length = snprintf(text, sizeof text, "%lld\n", (long long)time(NULL));

	if (folder < 0)
		return failed(path);
	unlinkat(folder, name, 0);
	file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (file < 0 || write(file, text, length) != length || close(file))
		return failed(path);
	return 0;
}

static int run_in(const char *path, char *command[])
{
	int folder = walk(path, 1, NULL);

	if (folder < 0 || openat(folder, ".", FOLDER) < 0 || fchdir(folder))
		return failed(path);
	execvp(command[0], command);
	return failed(command[0]);
}

/* Folders of the daemons' root; those of the shared root by these names are never shown over them. */
static int is_of_daemons(const char *name)
{
	static const char *names[] = {
		".", "..", "bin", "boot", "dev", "etc", "jail", "opt", "proc", "run", "sbin", "sys", "tmp",
		"usr", "var", NULL,
	};

	for (const char **each = names; *each; each++)
		if (!strcmp(name, *each))
			return 1;
	return !strncmp(name, "lib", 3);
}

/* Make a folder of the shared root appear at the same path in the daemons' root. */
static void show(int parent, const char *name, const char *path)
{
	int folder = openat(parent, name, FOLDER), tree;
	struct stat there, here;

	if (folder < 0)
		return; /* a file, a link, or gone again */
	if (!fstat(folder, &there) &&
	    (lstat(path, &here) || here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
		umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW); /* its folder was deleted and made again */
		mkdir(path, 0755);
		tree = syscall(CALL_OPEN_TREE, folder, "",
			       TREE_CLONE | TREE_RECURSIVE | AT_EMPTY_PATH | O_CLOEXEC);
		if (tree < 0 || syscall(CALL_MOVE_MOUNT, tree, "", AT_FDCWD, path, FROM_DESCRIPTOR))
			failed(path);
		if (tree >= 0)
			close(tree);
	}
	close(folder);
}

/* The folders of a folder of the shared root, at the same paths below `prefix`. */
static int show_all(int folder, const char *prefix, int (*is_skipped)(const char *))
{
	char path[16 + NAME_MAX];
	struct dirent *entry;
	int shown = 0;
	DIR *entries = folder < 0 ? NULL : fdopendir(folder);

	if (!entries)
		return -1;
	while ((entry = readdir(entries)) && shown < MAX_FOLDERS)
		if (!is_skipped(entry->d_name)) {
			shown++;
			snprintf(path, sizeof path, "%s/%s", prefix, entry->d_name);
			show(folder, entry->d_name, path);
		}
	closedir(entries);
	return 0;
}

/* /opt as a whole would bring a tenant's /opt/slurm, from which daemons load plugins. */
static int is_of_opt(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, "slurm");
}

static int show_folders(void)
{
	int jail = open(JAIL, FOLDER), var;
	int top = open(JAIL, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (jail < 0 || show_all(top, "", is_of_daemons))
		return failed(JAIL);
	show_all(openat(jail, "opt", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), "/opt", is_of_opt);
	var = openat(jail, "var", FOLDER);
	if (var >= 0) {
		show(var, "tmp", "/var/tmp");
		close(var);
	}
	close(jail);
	return 0;
}

/* A job has of the node's /tmp and /dev/shm the share that it has of the node's memory, and nobody else's files. */
static int own_memory(int root, const char *path, unsigned long job_mib, unsigned long node_mib)
{
	struct statvfs node;
	unsigned long long mib;
	char options[64];

	if (statvfs(path, &node))
		return failed(path);
	mib = (unsigned long long)node.f_blocks * node.f_frsize >> 20;
	if (job_mib && node_mib && job_mib < node_mib)
		mib = mib * job_mib / node_mib;
	snprintf(options, sizeof options, "mode=1777,size=%llum", mib < LEAST_MIB ? LEAST_MIB : mib);
	return memory_on(walk_from(dup(root), path, 0, NULL), path, MS_NODEV, options);
}

static unsigned long node_memory_mib(void)
{
	const char *text = getenv("NODE_CONF");
	const char *found = text ? strstr(text, "RealMemory=") : NULL;

	return found ? strtoul(found + strlen("RealMemory="), NULL, 10) : 0;
}

/* Make the root of a job: the shared root with all that is mounted over it, but a /tmp and a /dev/shm of its own.
 * And its control group, where there are such. */
static int make_job(unsigned int job, unsigned long mib)
{
	struct attributes private = {0, 0, MS_PRIVATE, 0}; /* else both would be mounted over the node's, too */
	char path[64];
	int tree, root, result;

	if (has_groups() && make_group(job, mib))
		failed("the kernel does not keep the job to its memory");
	snprintf(path, sizeof path, JOBS "/%u", job);
	if (mkdir(path, 0755))
		return errno == EEXIST ? 0 : failed(path); /* an earlier step has made it */
	tree = syscall(CALL_OPEN_TREE, AT_FDCWD, JAIL, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
	result = tree < 0 ||
		 syscall(CALL_MOUNT_SETATTR, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &private, sizeof private) ||
		 syscall(CALL_MOVE_MOUNT, tree, "", AT_FDCWD, path, FROM_DESCRIPTOR);
	if (result)
		failed(path);
	root = result ? -1 : open(path, FOLDER);
	if (!result)
		result = own_memory(root, "/tmp", mib, node_memory_mib()) ||
			 own_memory(root, "/dev/shm", mib, node_memory_mib());
	if (root >= 0)
		close(root);
	if (tree >= 0)
		close(tree);
	if (result) {
		umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
		rmdir(path);
	}
	return result ? -1 : 0;
}

/* The file system of /tmp as a process sees it; 0 if that is unknown. */
static dev_t tmp_of(int processes, const char *pid)
{
	char path[NAME_MAX + 8];
	struct stat about;
	int root, result;

	if (fstatat(processes, pid, &about, 0))
		return 0;
	snprintf(path, sizeof path, "%s/root", pid);
	setfsgid(about.st_gid); /* only its own user is shown a process's root */
	setfsuid(about.st_uid);
	root = openat(processes, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	setfsuid(0);
	setfsgid(0);
	if (root < 0)
		return 0;
	result = fstatat(root, "tmp", &about, AT_SYMLINK_NOFOLLOW);
	close(root);
	return result ? 0 : about.st_dev;
}

/* Kill what a job left behind: processes that Slurm lost, since their parents ended before them. */
static int kill_left_behind(dev_t tmp)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int killed = 0;

	while (processes && (entry = readdir(processes)))
		if (entry->d_name[0] > '0' && entry->d_name[0] <= '9' &&
		    tmp_of(dirfd(processes), entry->d_name) == tmp && !kill(atoi(entry->d_name), SIGKILL))
			killed++;
	if (processes)
		closedir(processes);
	return killed;
}

/* Remove the root of a job, with what lies in its /tmp and /dev/shm. */
static int end_job(unsigned int job)
{
	struct stat node, own;
	char path[64], tmp[80];
	int rounds = 0;

	if (has_groups() && end_group(job))
		failed("cannot remove the control group of a job");
	snprintf(path, sizeof path, JOBS "/%u", job);
	snprintf(tmp, sizeof tmp, "%s/tmp", path);
	if (!stat("/tmp", &node) && !lstat(tmp, &own) && own.st_dev != node.st_dev)
		while (kill_left_behind(own.st_dev) && ++rounds < 100) /* they may fork faster than one round */
			;
	umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
	return rmdir(path) && errno != ENOENT ? failed(path) : 0;
}

/* slurmd may not mount, so its Prolog, Epilog and job plugin ask this process. */
static int answer(int asker)
{
	char request[LONGEST_REQUEST];
	struct timeval patience = {1, 0};
	unsigned long mib;
	unsigned int job;
	ssize_t length;

	setsockopt(asker, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	length = read(asker, request, sizeof request - 1);
	if (length <= 0)
		return -1;
	request[length] = '\0';
	if (!strcmp(request, "folders"))
		return show_folders();
	if (sscanf(request, "job %u %lu", &job, &mib) == 2)
		return make_job(job, mib);
	if (sscanf(request, "end %u", &job) == 1)
		return end_job(job);
	return -1;
}

/* Folders of jobs that ended with the container; those in use cannot be removed. */
static void forget_jobs(void)
{
	DIR *jobs = opendir(JOBS);
	struct dirent *entry;

	while (jobs && (entry = readdir(jobs)))
		unlinkat(dirfd(jobs), entry->d_name, AT_REMOVEDIR);
	if (jobs)
		closedir(jobs);
}

static int serve(void)
{
	struct sockaddr_un address;
	int listener = unix_socket(&address), asker;

	unlink(SOCKET);
	mkdir(JOBS, 0755);
	forget_jobs();
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ||
	    chmod(SOCKET, 0600) || listen(listener, 64))
		return failed(SOCKET);
	if (daemon(0, 1))
		return failed("cannot go to the background");
	for (;;) {
		asker = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (asker < 0)
			continue;
		if (!answer(asker))
			send(asker, "1", 1, MSG_NOSIGNAL);
		close(asker);
	}
}

static int ask(const char *what)
{
	return ask_to_mount(what) ? failed(SOCKET) : 0;
}

static int ask_end(const char *job)
{
	char request[LONGEST_REQUEST];

	snprintf(request, sizeof request, "end %s", job);
	return ask(request);
}

static int run(int count, char *words[])
{
	const char *what = words[0];

	if (count == 3 && !strcmp(what, "bind"))
		return bind_at(words[1], words[2], 0);
	if (count == 3 && !strcmp(what, "bind-read-only"))
		return bind_at(words[1], words[2], ATTRIBUTE_READ_ONLY);
	if (count == 3 && !strcmp(what, "bind-no-devices"))
		return bind_at(words[1], words[2], ATTRIBUTE_NO_DEVICES);
	if (count == 3 && !strcmp(what, "memory"))
		return memory_at(words[1], words[2]);
	if (count == 3 && !strcmp(what, "link"))
		return link_at(words[1], words[2]);
	if (count == 2 && !strcmp(what, "stamp"))
		return stamp_at(words[1]);
	if (count >= 3 && !strcmp(what, "in"))
		return run_in(words[1], words + 2);
	if (count == 1 && !strcmp(what, "show-folders"))
		return show_folders();
	if (count == 1 && !strcmp(what, "serve"))
		return serve();
	if (count == 1 && !strcmp(what, "ask"))
		return ask("folders");
	if (count == 2 && !strcmp(what, "end"))
		return ask_end(words[1]);
	fprintf(stderr, "usage: shared-root bind|bind-read-only|bind-no-devices SOURCE PATH\n"
			"       shared-root memory PATH OPTIONS | link TEXT PATH | stamp PATH\n"
			"       shared-root in PATH COMMAND... | show-folders | serve | ask | end JOB\n");
	return -1;
}

int main(int argc, char *argv[])
{
	static char *nothing[] = {"", NULL};

	umask(022);
	return run(argc > 1 ? argc - 1 : 1, argc > 1 ? argv + 1 : nothing) ? 1 : 0;
}
