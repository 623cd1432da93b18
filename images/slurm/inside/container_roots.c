/* container-roots: gives Slurm's job plugin (container.c) the root file systems of containers.
 *
 * Jobs cannot mount (jail.h), and a container is made of mounts. So for each container a process of the job's
 * user lays them in a user namespace and a mount namespace of its own, and answers with a descriptor of the
 * container's root. Tasks change their root directory to that descriptor and gain nothing else: they stay in the
 * user namespace they were in, and the kernel ignores set-uid bits and file capabilities of another mount
 * namespace. The process then gives up every capability and only keeps the mounts alive; it ends when the last
 * step that uses the container does.
 *
 * Paths and images are the tenant's. Only the keeper, with the rights of the job's user and inside of the
 * shared root, follows them; it executes nothing. This process reads a header of fixed size and counts steps.
 */
#include "jail.h"
#include "container.h"
#include "mount_server.h"

#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#define MOST_STEPS 256
#define KEEPER_SECONDS 20 /* for laying the mounts */
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

struct container {
	struct container_header header;
	int root, image;
	pid_t keeper;
	int steps;
};

static struct {
	int socket;
	struct container *container;
} steps[MOST_STEPS];
static int step_count;

/* The keeper: everything from here to keep() runs with the rights of the job's user. */

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

static int memory(int root, const char *target)
{
	int point = mount_point(root, target, 1);
	char place[64];

	snprintf(place, sizeof place, "/proc/self/fd/%d", point);
	return point < 0 || mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") ? -1 : 0;
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
			failed = memory(roots[0], target);
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
	int roots[2];

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
	for (int fd = 0; fd < 1024; fd++)
		close(fd);
	alarm(0);
	for (;;)
		pause();
}

/* The server. */

static int write_to(pid_t process, const char *file, const char *text)
{
	char path[64];
	int fd, is_written;

	snprintf(path, sizeof path, "/proc/%d/%s", process, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return is_written ? 0 : -1;
}

/* Root of a tenant has the ids of the whole cluster anyway; others have their own alone. */
static int set_ids(pid_t process, const struct container_header *user)
{
	char text[64];

	if (!user->uid)
		return write_to(process, "uid_map", "0 0 65536") || write_to(process, "gid_map", "0 0 65536");
	snprintf(text, sizeof text, "%u %u 1", user->uid, user->uid);
	if (write_to(process, "setgroups", "deny") || write_to(process, "uid_map", text))
		return -1;
	snprintf(text, sizeof text, "%u %u 1", user->gid, user->gid);
	return write_to(process, "gid_map", text);
}

static int receive_roots(int socket, struct container *container, char text[CONTAINER_MESSAGE])
{
	char control[CMSG_SPACE(2 * sizeof(int))];
	struct iovec part = {text, CONTAINER_MESSAGE - 1};
	struct msghdr message = {0};
	struct cmsghdr *sent;
	ssize_t length;
	int roots[2];

	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = control;
	message.msg_controllen = sizeof control;
	length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	sent = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!sent || sent->cmsg_type != SCM_RIGHTS || sent->cmsg_len != CMSG_LEN(2 * sizeof(int))) {
		if (length <= 0)
			length = snprintf(text, CONTAINER_MESSAGE, "it could not be set up on this node");
		text[length] = '\0';
		return -1;
	}
	memcpy(roots, CMSG_DATA(sent), sizeof roots);
	container->root = roots[0];
	container->image = roots[1];
	return 0;
}

static struct container *start(const struct container_header *header, char *words[], int count,
			       char text[CONTAINER_MESSAGE])
{
	struct container *container = calloc(1, sizeof *container);
	int answers[2], ready[2], is_started = 0;
	char byte;

	strcpy(text, "no memory or descriptors are left on this node");
	if (!container || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, answers))
		return NULL;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ready))
		return NULL;
	container->header = *header;
	container->keeper = fork();
	if (!container->keeper) {
		close(answers[0]);
		close(ready[0]);
		keep(header, words, count, answers[1], ready[1]);
	}
	close(answers[1]);
	close(ready[1]);
	if (container->keeper > 0) {
		if (read(ready[0], &byte, 1) == 1 && !set_ids(container->keeper, header) &&
		    write(ready[0], "", 1) != 1)
			byte = 0;
		close(ready[0]);
		ready[0] = -1;
		is_started = !receive_roots(answers[0], container, text);
	}
	if (ready[0] >= 0)
		close(ready[0]);
	close(answers[0]);
	if (is_started)
		return container;
	if (container->keeper > 0)
		kill(container->keeper, SIGKILL);
	free(container);
	return NULL;
}

static struct container *running(const struct container_header *header)
{
	for (int i = 0; i < step_count; i++) {
		struct container_header *other = &steps[i].container->header;

		if (*header->key && other->uid == header->uid && !strcmp(other->key, header->key))
			return steps[i].container;
	}
	return NULL;
}

static int read_all(int socket, void *to, size_t length)
{
	ssize_t done;

	for (char *at = to; length; at += done, length -= done)
		if ((done = read(socket, at, length)) <= 0)
			return -1;
	return 0;
}

static void serve(int socket)
{
	static char bytes[CONTAINER_REQUEST + 1];
	static char *words[CONTAINER_REQUEST / 2];
	struct timeval patience = {5, 0};
	struct container_header header;
	struct container *container;
	char text[CONTAINER_MESSAGE];
	int count = 0, roots[2];

	setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (step_count == MOST_STEPS || read_all(socket, &header, sizeof header) ||
	    header.length > CONTAINER_REQUEST || header.group_count > CONTAINER_GROUPS ||
	    read_all(socket, bytes, header.length)) {
		close(socket);
		return;
	}
	header.key[sizeof header.key - 1] = '\0';
	bytes[header.length] = '\0';
	for (char *at = bytes; at < bytes + header.length && count < CONTAINER_REQUEST / 2; at += strlen(at) + 1)
		words[count++] = at;
	container = running(&header);
	if (!container)
		container = start(&header, words, count, text);
	if (!container) {
		send(socket, text, strlen(text), MSG_NOSIGNAL);
		close(socket);
		return;
	}
	container->steps++;
	steps[step_count].socket = socket;
	steps[step_count++].container = container;
	roots[0] = container->root;
	roots[1] = container->image;
	send_roots(socket, roots); /* a step that is gone is found by poll */
}

static void end(int index)
{
	struct container *container = steps[index].container;

	close(steps[index].socket);
	steps[index] = steps[--step_count];
	if (--container->steps)
		return;
	close(container->root);
	close(container->image);
	kill(container->keeper, SIGKILL);
	free(container);
}

int main(void)
{
	struct pollfd watched[MOST_STEPS + 1];
	struct sockaddr_un address = {0};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, i;

	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, CONTAINER_SOCKET);
	unlink(CONTAINER_SOCKET);
	umask(0177);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
		perror("container-roots: " CONTAINER_SOCKET);
		return 1;
	}
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		watched[0] = (struct pollfd){listener, POLLIN, 0};
		for (i = 0; i < step_count; i++)
			watched[i + 1] = (struct pollfd){steps[i].socket, POLLIN, 0};
		if (poll(watched, step_count + 1, -1) < 0)
			continue;
		for (i = step_count; i > 0; i--)
			if (watched[i].revents)
				end(i - 1);
		if (watched[0].revents && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
			serve(fd);
	}
}
