/* The keeper of a container: lays its mounts with the rights of the job's user, hands over its root and stays.
 *
 * Everything here runs in a child of container-roots (container_roots.c says why), and executes nothing.
 */
#ifndef NEOCLOUD_CONTAINER_KEEPER_H
#define NEOCLOUD_CONTAINER_KEEPER_H

#include "jail.h"
#include "container.h"
#include "mount_server.h"

#include <ftw.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#define KEEPER_SECONDS 20 /* for laying the mounts */
#define MOST_DESCRIPTORS 4096 /* of container-roots: four of a container, one of a step */
#define WORDS_OF_A_MOUNT 4

/* Of the kernel's headers, which may be older than the kernel. */
enum { CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_OPENAT2 = 437, CALL_MOUNT_SETATTR = 442 };
enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, FROM_DESCRIPTOR = 0x04, TO_DESCRIPTOR = 0x40 };
enum { ATTRIBUTE_READ_ONLY = 1, ATTRIBUTE_NO_SUID = 2, ATTRIBUTE_NO_DEVICES = 4, ATTRIBUTE_NO_EXECUTION = 8 };
enum { RESOLVE_BELOW_ROOT = 0x10 };
struct attributes {
	unsigned long long set, clear, propagation, userns;
};
struct how {
	unsigned long long flags, mode, resolve;
};

static int answer_to;

static void refuse(const char *what)
{
	char text[CONTAINER_MESSAGE];
	int length = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));

	if (length >= (int)sizeof text)
		length = sizeof text - 1;
	send(answer_to, text, length, MSG_NOSIGNAL);
	_exit(1);
}

static int below(int root, const char *path, int flags)
{
	struct how how = {flags | O_PATH | O_CLOEXEC, 0, RESOLVE_BELOW_ROOT};

	return syscall(CALL_OPENAT2, root, *path ? path : ".", &how, sizeof how);
}

/* The file or folder of the container to mount at; made where it is missing. Links lead nowhere but into the
 * container. One that leads to nothing is replaced. */
static int mount_point(int root, const char *path, int is_folder)
{
	char so_far[PATH_MAX];
	size_t end = 0, next;
	int here = below(root, "", O_DIRECTORY), inner, is_last;

	if (strlen(path) >= sizeof so_far) {
		errno = ENAMETOOLONG;
		return -1;
	}
	while (here >= 0) {
		end += strspn(path + end, "/");
		next = end + strcspn(path + end, "/");
		if (next == end)
			return here;
		memcpy(so_far, path, next);
		so_far[next] = '\0';
		is_last = !path[next + strspn(path + next, "/")];
		inner = below(root, so_far, 0);
		if (inner < 0 && errno == ENOENT) {
			unlinkat(here, so_far + end, 0);
			if (is_last && !is_folder)
				close(openat(here, so_far + end, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
			else
				mkdirat(here, so_far + end, 0755);
			inner = below(root, so_far, 0);
		}
		close(here);
		here = inner;
		end = next;
	}
	return -1;
}

static int has(const char *flags, const char *flag)
{
	size_t length = strlen(flag);

	for (const char *at = flags; (at = strstr(at, flag)); at += length)
		if ((at == flags || at[-1] == '+') && (!at[length] || at[length] == '+'))
			return 1;
	return 0;
}

static int bind_at(int root, const char *source, const char *target, const char *flags)
{
	struct attributes attributes = {0, 0, 0, 0};
	int tree, point;
	struct stat about;

	if (stat(source, &about))
		return -1;
	tree = syscall(CALL_OPEN_TREE, AT_FDCWD, source,
		       TREE_CLONE | (has(flags, "bind") ? 0 : TREE_RECURSIVE) | O_CLOEXEC);
	if (tree < 0)
		return -1;
	attributes.set = (has(flags, "ro") ? ATTRIBUTE_READ_ONLY : 0) | (has(flags, "nosuid") ? ATTRIBUTE_NO_SUID : 0) |
			 (has(flags, "nodev") ? ATTRIBUTE_NO_DEVICES : 0) |
			 (has(flags, "noexec") ? ATTRIBUTE_NO_EXECUTION : 0);
	if (attributes.set && syscall(CALL_MOUNT_SETATTR, tree, "",
				      AT_EMPTY_PATH | (has(flags, "bind") ? 0 : TREE_RECURSIVE), &attributes,
				      sizeof attributes))
		return -1;
	point = mount_point(root, target, S_ISDIR(about.st_mode));
	if (point < 0 || syscall(CALL_MOVE_MOUNT, tree, "", point, "", FROM_DESCRIPTOR | TO_DESCRIPTOR))
		return -1;
	close(tree);
	close(point);
	return 0;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *walk)
{
	(void)about;
	(void)kind;
	(void)walk;
	return remove(path);
}

/* A folder of the job's own /tmp, which is in memory: all of them, and all that the job writes there, have that one's
 * size. A tmpfs of its own would have a size for itself, and what is in it would count as nobody's memory. */
static int memory(int root, const char *folder, int number, const char *target, const char *flags)
{
	char place[PATH_MAX], all_flags[PATH_MAX];

	if (snprintf(place, sizeof place, "%s/memory.%d", folder, number) >= (int)sizeof place ||
	    snprintf(all_flags, sizeof all_flags, "nosuid+nodev+%s", flags) >= (int)sizeof all_flags) {
		errno = ENAMETOOLONG;
		return -1;
	}
	nftw(place, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* of an earlier step in a named container */
	return mkdir(place, 0700) || chmod(place, 01777) || bind_at(root, place, target, all_flags) ? -1 : 0;
}

static int unmount(int root, const char *target)
{
	int point = below(root, target, 0);
	char place[64];

	snprintf(place, sizeof place, "/proc/self/fd/%d", point);
	return point < 0 || umount2(place, MNT_DETACH) ? -1 : 0;
}

/* The image below, the container's own changes above it. */
static int layers(const char *image, const char *folder)
{
	char options[160], place[PATH_MAX];
	int lower = open(image, O_PATH | O_DIRECTORY | O_CLOEXEC), upper, work;

	snprintf(place, sizeof place, "%s/upper", folder);
	upper = open(place, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	snprintf(place, sizeof place, "%s/work", folder);
	work = open(place, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	snprintf(place, sizeof place, "%s/root", folder);
	if (lower < 0 || upper < 0 || work < 0)
		return -1;
	snprintf(options, sizeof options,
		 "lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,userxattr", lower, upper,
		 work);
	if (mount("overlay", place, "overlay", MS_NOSUID | MS_NODEV, options))
		return -1;
	return open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void lay(char *words[], int count, int roots[2])
{
	struct attributes read_only = {ATTRIBUTE_READ_ONLY, 0, 0, 0};
	int failed = 0, is_read_only, i;

	if (count < 3 || (count - 3) % WORDS_OF_A_MOUNT) {
		errno = EINVAL;
		refuse("cannot read the request");
	}
	is_read_only = !strcmp(words[0], "ro");
	if ((roots[0] = layers(words[1], words[2])) < 0)
		refuse("cannot mount the image");
	roots[1] = syscall(CALL_OPEN_TREE, roots[0], "", TREE_CLONE | AT_EMPTY_PATH | O_CLOEXEC);
	if (roots[1] < 0)
		refuse("cannot open the image");
	for (i = 3; i < count && !failed; i += WORDS_OF_A_MOUNT) {
		char *kind = words[i], *source = words[i + 1], *target = words[i + 2], *flags = words[i + 3];

		if (!strcmp(kind, "tmpfs"))
			failed = memory(roots[0], words[2], i, target, flags);
		else if (!strcmp(kind, "umount"))
			failed = unmount(roots[0], target);
		else
			failed = bind_at(roots[0], source, target, flags);
		if (failed && !strcmp(kind, "try"))
			failed = 0;
		if (failed) {
			char what[2 * PATH_MAX + 32];

			snprintf(what, sizeof what, "cannot mount %s at %s", source, target);
			refuse(what);
		}
	}
	if (is_read_only &&
	    syscall(CALL_MOUNT_SETATTR, roots[0], "", AT_EMPTY_PATH, &read_only, sizeof read_only))
		refuse("cannot make the container read-only");
}

static void become(const struct container_header *user)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];

	/* Some hosts let only those make a user namespace that may mount; the namespace takes all rights outside. */
	if (setgroups(user->group_count, user->groups) || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) ||
	    setresgid(user->gid, user->gid, user->gid) || setresuid(user->uid, user->uid, user->uid) ||
	    read_capabilities(data))
		refuse("cannot become the job's user");
	data[0].effective = data[0].permitted;
	data[1].effective = data[1].permitted;
	if (syscall(SYS_capset, &header, data) || unshare(CLONE_NEWUSER | CLONE_NEWNS))
		refuse("cannot make a user namespace");
}

static int send_roots(int socket, int roots[2])
{
	char control[CMSG_SPACE(2 * sizeof(int))] = {0}, byte = 0;
	struct iovec text = {&byte, 1};
	struct msghdr message = {0};
	struct cmsghdr *part;

	message.msg_iov = &text;
	message.msg_iovlen = 1;
	message.msg_control = control;
	message.msg_controllen = sizeof control;
	part = CMSG_FIRSTHDR(&message);
	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(2 * sizeof(int));
	memcpy(CMSG_DATA(part), roots, 2 * sizeof(int));
	return sendmsg(socket, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static void keep(const struct container_header *user, char *words[], int count, int answer, int ready)
{
	char byte, root[JOB_ROOT];
	int roots[2], fd;

	for (fd = 3; fd < MOST_DESCRIPTORS; fd++) /* of other containers */
		if (fd != answer && fd != ready)
			close(fd);
	answer_to = answer;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody traces it or opens what is in its /proc */
	alarm(KEEPER_SECONDS);
	umask(022);
	snprintf(root, sizeof root, JOBS "/%u", user->job);
	if (only_shared_root(root))
		refuse("cannot enter the shared root");
	become(user);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (write(ready, "", 1) != 1 || read(ready, &byte, 1) != 1)
		_exit(1); /* its ids could not be set */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		refuse("cannot make a mount namespace");
	lay(words, count, roots);
	if (refuse_kernel_calls() || limit_capabilities(0))
		refuse("cannot give up rights");
	if (send_roots(answer_to, roots))
		_exit(1);
	for (fd = 0; fd < 1024; fd++)
		close(fd);
	alarm(0);
	for (;;)
		pause();
}

#endif
