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
 * shared root, follows them; it executes nothing. This process reads a header of fixed size and counts steps. It
 * waits for no keeper, which its user may stop: others' containers start meanwhile.
 */
#include "jail.h"
#include "container_keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#define MOST_STEPS 512
#define MOST_STEPS_OF_A_USER 128

struct container {
	struct container_header header;
	int root, image;   /* -1 until the keeper has laid the mounts */
	int ready, answer; /* of the keeper; -1 from then on */
	time_t deadline;
	pid_t keeper;
	int steps;
};

static struct {
	int socket;
	struct container *container;
} steps[MOST_STEPS];
static int step_count;
static struct container *containers[MOST_STEPS];
static int container_count;

static time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

static int is_late(const struct container *container)
{
	return container->answer >= 0 && now() > container->deadline;
}

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

/* A container whose keeper begins to lay the mounts. */
static struct container *start(const struct container_header *header, char *words[], int count)
{
	struct container *container = calloc(1, sizeof *container);
	int answers[2], ready[2];

	if (!container || container_count == MOST_STEPS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, answers)) {
		free(container);
		return NULL;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ready)) {
		close(answers[0]);
		close(answers[1]);
		free(container);
		return NULL;
	}
	container->header = *header;
	container->root = container->image = -1;
	container->answer = answers[0];
	container->ready = ready[0];
	container->deadline = now() + KEEPER_SECONDS;
	container->keeper = fork();
	if (!container->keeper)
		keep(header, words, count, answers[1], ready[1]);
	/* Without a keeper this is the end of both, which poll finds. */
	close(answers[1]);
	close(ready[1]);
	containers[container_count++] = container;
	return container;
}

/* The keeper has made its user namespace, and waits for its ids. */
static void let_go_on(struct container *container)
{
	char byte;

	if (read(container->ready, &byte, 1) == 1 && !set_ids(container->keeper, &container->header))
		send(container->ready, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(container->ready);
	container->ready = -1;
}

static void forget(struct container *container)
{
	int descriptors[] = {container->root, container->image, container->ready, container->answer}, i;

	for (i = 0; i < 4; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	if (container->keeper > 0)
		kill(container->keeper, SIGKILL);
	for (i = 0; containers[i] != container; i++)
		;
	containers[i] = containers[--container_count];
	free(container);
}

/* Tell all steps of a container that it is there, or why not. */
static void tell(struct container *container, const char *failure)
{
	int roots[2] = {container->root, container->image}, i;

	for (i = step_count - 1; i >= 0; i--) {
		if (steps[i].container != container)
			continue;
		if (!failure) {
			send_roots(steps[i].socket, roots); /* a step that is gone is found by poll */
			continue;
		}
		send(steps[i].socket, failure, strlen(failure), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(steps[i].socket);
		steps[i] = steps[--step_count];
	}
	if (failure)
		forget(container);
}

static void hear_keeper(struct container *container)
{
	char text[CONTAINER_MESSAGE];
	int failed = receive_roots(container->answer, container, text);

	close(container->answer);
	container->answer = -1;
	tell(container, failed ? text : NULL);
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

static int steps_of(unsigned int uid)
{
	int count = 0, i;

	for (i = 0; i < step_count; i++)
		count += steps[i].container->header.uid == uid;
	return count;
}

static void refuse_step(int socket, const char *why)
{
	send(socket, why, strlen(why), MSG_NOSIGNAL | MSG_DONTWAIT);
	close(socket);
}

static void serve(int socket)
{
	static char bytes[CONTAINER_REQUEST + 1];
	static char *words[CONTAINER_REQUEST / 2];
	struct timeval patience = {5, 0};
	struct container_header header;
	struct container *container;
	int count = 0, roots[2];

	setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (read_all(socket, &header, sizeof header) || header.length > CONTAINER_REQUEST ||
	    header.group_count > CONTAINER_GROUPS || read_all(socket, bytes, header.length))
		return refuse_step(socket, "its request cannot be read");
	if (step_count == MOST_STEPS || steps_of(header.uid) >= MOST_STEPS_OF_A_USER)
		return refuse_step(socket, "too many steps have a container on this node; try again when some have ended");
	header.key[sizeof header.key - 1] = '\0';
	bytes[header.length] = '\0';
	for (char *at = bytes; at < bytes + header.length && count < CONTAINER_REQUEST / 2; at += strlen(at) + 1)
		words[count++] = at;
	container = running(&header);
	if (!container)
		container = start(&header, words, count);
	if (!container)
		return refuse_step(socket, "no memory or descriptors are left on this node");
	container->steps++;
	steps[step_count].socket = socket;
	steps[step_count++].container = container;
	roots[0] = container->root;
	roots[1] = container->image;
	if (container->answer < 0)
		send_roots(socket, roots);
}

static void end(int index)
{
	struct container *container = steps[index].container;

	close(steps[index].socket);
	steps[index] = steps[--step_count];
	if (!--container->steps)
		forget(container);
}

static int open_listener(void)
{
	struct sockaddr_un address = {0};
	struct rlimit descriptors;
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (!getrlimit(RLIMIT_NOFILE, &descriptors)) {
		descriptors.rlim_cur = descriptors.rlim_max < MOST_DESCRIPTORS ? descriptors.rlim_max : MOST_DESCRIPTORS;
		setrlimit(RLIMIT_NOFILE, &descriptors);
	}
	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, CONTAINER_SOCKET);
	unlink(CONTAINER_SOCKET);
	umask(0177);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
		perror("container-roots: " CONTAINER_SOCKET);
		return -1;
	}
	return listener;
}

int main(void)
{
	struct pollfd watched[1 + 3 * MOST_STEPS], *of_steps = watched + 1, *of_containers;
	int listener = open_listener(), fd, i, is_laying;

	if (listener < 0)
		return 1;
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		of_containers = of_steps + step_count;
		watched[0] = (struct pollfd){listener, POLLIN, 0};
		for (i = 0; i < step_count; i++)
			of_steps[i] = (struct pollfd){steps[i].socket, POLLIN, 0};
		for (i = is_laying = 0; i < container_count; i++) {
			of_containers[2 * i] = (struct pollfd){containers[i]->ready, POLLIN, 0};
			of_containers[2 * i + 1] = (struct pollfd){containers[i]->answer, POLLIN, 0};
			is_laying |= containers[i]->answer >= 0;
		}
		if (poll(watched, 1 + step_count + 2 * container_count, is_laying ? 1000 : -1) < 0)
			continue;
		/* One of these at a time where a container or step goes: their numbers change then. */
		for (i = container_count - 1; i >= 0; i--)
			if (of_containers[2 * i].revents)
				let_go_on(containers[i]);
		for (i = container_count - 1; i >= 0; i--)
			if (of_containers[2 * i + 1].revents || is_late(containers[i]))
				break;
		if (i >= 0 && of_containers[2 * i + 1].revents)
			hear_keeper(containers[i]);
		else if (i >= 0)
			tell(containers[i], "its mounts were not there in time");
		else
			for (i = step_count - 1; i >= 0; i--)
				if (of_steps[i].revents)
					end(i);
		if (watched[0].revents && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
			serve(fd);
	}
}
