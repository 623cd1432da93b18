/* Runs the tasks of a step in a container: srun, sbatch and salloc --container-image, as NVIDIA's Pyxis has it.
 *
 * In slurmstepd, once for a step: a program in the shared root, run as the job's user with no more rights than a
 * job, imports the image and says what the container is made of (/opt/slurm/libexec/container). Then
 * container-roots lays the mounts and hands over the container's root, and each task makes it its own.
 * This is a part of the job plugin, since a task enters either the shared root or a container.
 */
#include "jail.h"
#include "container.h"
#include "appear_as_root.h"
#include "watched_program.h"

#include <grp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <slurm/spank.h>

#define PROGRAM "/opt/slurm/libexec/container"
#define PYTHON "/usr/bin/python3"
#define MOST_WORDS 8192
#define ANSWER_SECONDS 60 /* of container-roots */
#define TIME_AFTER_JOB 60000 /* for saving a container and removing it, in milliseconds */
#define SQUEUE "/usr/bin/squeue"

static int take(int option, const char *value, int remote);

static struct spank_option options[] = {
	{"container-image", "[docker://][USER@][REGISTRY#]IMAGE[:TAG]|PATH",
	 "run in a container made of this image: of a registry, or a squashfs file, an archive of docker or OCI, "
	 "or an OCI layout in the shared root", 1, 0, take},
	{"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]",
	 "show folders or files in the container; flags, such as ro, are separated with \"+\"", 1, 1, take},
	{"container-workdir", "PATH", "working directory in the container", 1, 2, take},
	{"container-name", "NAME[:auto|create|exec]",
	 "keep the container on the node, with what is changed in it, for later steps of this job", 1, 3, take},
	{"container-save", "PATH", "write the container's file system to a squashfs file after the step", 1, 4, take},
	{"container-mount-home", NULL, "show the home folder in the container (default)", 0, 5, take},
	{"no-container-mount-home", NULL, "do not show the home folder in the container", 0, 6, take},
	{"container-remap-root", NULL, "seem to be root in the container, with the rights that you have", 0, 7, take},
	{"no-container-remap-root", NULL, "be the same user in the container (default)", 0, 8, take},
	{"container-writable", NULL, "let the container's files be changed (default)", 0, 9, take},
	{"container-readonly", NULL, "let the container's files not be changed", 0, 10, take},
	{"container-env", "NAME[,NAME...]", "variables of the job that replace those of the image", 1, 11, take},
	SPANK_OPTIONS_TABLE_END,
};
enum { OPTIONS = 12, NAME = 3, SAVE = 4, REMAP_ROOT = 7 };

static char *chosen[OPTIONS]; /* "--name" or "--name=value" */

static struct {
	int is_wanted, has_failed, socket, root, image;
	char *words[MOST_WORDS]; /* what the program said */
	int count, variables;    /* words[1] to words[variables]; then the working directory */
	char job[32], step[32], node[16];
	unsigned int uid, gid;
	gid_t *groups;
	int group_count, tasks_left;
	char directory[PATH_MAX]; /* of the job: slurmstepd is in it when it starts tasks, and not afterwards */
} container = {0, 0, -1, -1, -1};

static int take(int option, const char *value, int remote)
{
	size_t length = strlen(options[option].name) + (value ? strlen(value) : 0) + 4;

	(void)remote;
	if (options[option].has_arg && (!value || !*value)) {
		slurm_error("--%s: say what it is to be", options[option].name);
		return -1;
	}
	free(chosen[option]);
	chosen[option] = malloc(length);
	if (!chosen[option])
		return -1;
	container.is_wanted = 1;
	snprintf(chosen[option], length, value ? "--%s=%s" : "--%s", options[option].name, value);
	return 0;
}

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_REMOTE && spank_context() != S_CTX_ALLOCATOR)
		return 0;
	for (struct spank_option *each = options; each->name; each++)
		if (spank_option_register(spank, each) != ESPANK_SUCCESS)
			slurm_error("container: cannot offer --%s", each->name);
	return 0;
}

static int know_job(spank_t spank)
{
	unsigned int job, step, node, tasks;

	if (spank_get_item(spank, S_JOB_UID, &container.uid) || spank_get_item(spank, S_JOB_GID, &container.gid) ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &container.groups, &container.group_count) ||
	    spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_STEPID, &step) ||
	    spank_get_item(spank, S_JOB_NODEID, &node) || spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks))
		return -1;
	snprintf(container.job, sizeof container.job, "%u", job);
	snprintf(container.step, sizeof container.step, "%u", step);
	snprintf(container.node, sizeof container.node, "%u", node);
	container.tasks_left = (int)tasks;
	if (container.group_count > CONTAINER_GROUPS)
		container.group_count = CONTAINER_GROUPS;
	return 0;
}

struct program {
	const char *verb;
	char **variables;
	int image;
};

static void keep_three_files(int input, int output, int messages, int also)
{
	dup2(input, 0);
	dup2(output, 1);
	dup2(messages, 2);
	for (int i = 3; i < 1024; i++)
		if (i != also)
			close(i);
}

/* In the child: with the rights of a job of this user, in the shared root. */
static void run_program(void *of, int output, int messages)
{
	struct program *program = of;
	char *command[OPTIONS + 10] = {PYTHON, "-I", PROGRAM, (char *)program->verb, container.job, container.step,
				       container.node};
	int count = 7, i, image = program->image, nothing;

	for (i = 0; i < OPTIONS; i++)
		if (chosen[i])
			command[count++] = chosen[i];
	if (seteuid(0) || setegid(0) || enter_shared_root(job_root) || limit_capabilities(TENANT_CAPABILITIES) ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || setgroups(container.group_count, container.groups) ||
	    setresgid(container.gid, container.gid, container.gid) ||
	    setresuid(container.uid, container.uid, container.uid) || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
		_exit(120);
	if (chdir(container.directory) && chdir("/"))
		_exit(121);
	nothing = open("/dev/null", O_RDWR);
	if (image >= 0) /* above those, so that it survives */
		image = fcntl(image, F_DUPFD, 3);
	keep_three_files(nothing, output, messages, image);
	if (image >= 0) {
		char place[32];

		snprintf(place, sizeof place, "%d", image);
		command[count++] = "--descriptor";
		command[count++] = strdup(place);
	}
	command[count] = NULL;
	execve(PYTHON, command, program->variables);
	_exit(122);
}

/* In a child: as slurmd's own programs ask. Of an array, whose first number this may be, each job is listed. */
static void ask_slurm(void *of, int output)
{
	char job[48];
	char *command[] = {SQUEUE, "--noheader", "--states=all", "--format=%A %T", job, NULL};
	char *variables[] = {"PATH=/usr/bin:/bin", NULL};
	int nothing = open("/dev/null", O_RDWR);

	(void)of;
	snprintf(job, sizeof job, "--jobs=%s", container.job);
	keep_three_files(nothing, output, nothing, -1);
	if (seteuid(0) || setegid(0))
		_exit(120);
	execve(SQUEUE, command, variables);
	_exit(122);
}

static void hear(const char *line)
{
	if (!strncmp(line, "error: ", 7))
		slurm_error("container: %s", line + 7);
	else
		slurm_spank_log("container: %s", line);
}

/* The program's messages become the step's, line by line; what it prints is kept, up to a size. */
static int run(spank_t spank, const char *verb, char *output, size_t *size, int image)
{
	static char *nothing[] = {"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", NULL};
	struct program program = {verb, nothing, image};
	struct watched watched = {0};

	if (spank && spank_get_item(spank, S_JOB_ENV, &program.variables))
		program.variables = nothing;
	watched.program = run_program;
	watched.ask = ask_slurm;
	watched.hear = hear;
	watched.of = &program;
	watched.job = container.job;
	watched.time_after_job = strcmp(verb, "start") ? TIME_AFTER_JOB : 0;
	return watch(&watched, output, size);
}

/* All of it, or the time for it is over. */
static int send_all(int socket, const void *bytes, size_t length)
{
	ssize_t sent;

	for (const char *at = bytes; length; at += sent, length -= sent)
		if ((sent = send(socket, at, length, MSG_NOSIGNAL)) <= 0)
			return -1;
	return 0;
}

static int ask_for_root(size_t length)
{
	struct container_header header = {0};
	struct sockaddr_un address = {0};
	struct timeval patience = {ANSWER_SECONDS, 0};
	char control[CMSG_SPACE(2 * sizeof(int))], text[CONTAINER_MESSAGE];
	struct iovec part = {text, sizeof text - 1};
	struct msghdr message = {0};
	struct cmsghdr *sent;
	ssize_t received;
	int roots[2], i;

	header.uid = container.uid;
	header.gid = container.gid;
	header.group_count = container.group_count;
	header.job = atoi(container.job);
	header.length = length;
	for (i = 0; i < container.group_count; i++)
		header.groups[i] = container.groups[i];
	if (chosen[NAME])
		snprintf(header.key, sizeof header.key, "%s/%.*s", container.job,
			 (int)strcspn(strchr(chosen[NAME], '=') + 1, ":"), strchr(chosen[NAME], '=') + 1);
	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, CONTAINER_SOCKET);
	container.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(container.socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(container.socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	i = container.variables + 2;
	if (connect(container.socket, (struct sockaddr *)&address, sizeof address) ||
	    send_all(container.socket, &header, sizeof header) ||
	    send_all(container.socket, container.words[i], length)) {
		slurm_error("container: this node cannot start containers: %m");
		return -1;
	}
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = control;
	message.msg_controllen = sizeof control;
	received = recvmsg(container.socket, &message, MSG_CMSG_CLOEXEC);
	sent = received > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!sent || sent->cmsg_type != SCM_RIGHTS || sent->cmsg_len != CMSG_LEN(2 * sizeof(int))) {
		text[received > 0 ? received : 0] = '\0';
		slurm_error("container: %s", *text ? text : "this node did not start it in time");
		return -1;
	}
	memcpy(roots, CMSG_DATA(sent), sizeof roots);
	container.root = roots[0];
	container.image = roots[1];
	return 0;
}

/* The program's words: how many variables; the variables; the working directory; those for container-roots. */
static int split(char *text, size_t length)
{
	char *end = text + length;

	if (!length || end[-1])
		return -1;
	for (char *at = text; at < end; at += strlen(at) + 1) {
		if (container.count == MOST_WORDS)
			return -1;
		container.words[container.count++] = at;
	}
	container.variables = atoi(text);
	return container.variables < 0 || container.variables > container.count - 5 ? -1 : 0;
}

/* Import the image and get the container's root. */
static int start(spank_t spank)
{
	static char text[CONTAINER_REQUEST];
	size_t size = sizeof text;
	uid_t user = geteuid();
	gid_t group = getegid();
	int failed;

	if (!getcwd(container.directory, sizeof container.directory))
		strcpy(container.directory, "/");
	if (know_job(spank)) {
		slurm_error("container: the job is not known");
		return -1;
	}
	if (run(spank, "start", text, &size, -1))
		return -1;
	if (split(text, size)) {
		slurm_error("container: its description cannot be read");
		return -1;
	}
	if (seteuid(0)) /* slurmstepd acts as the user at this moment */
		return -1;
	failed = ask_for_root(text + size - container.words[container.variables + 2]);
	return setegid(group) || seteuid(user) ? -1 : failed;
}

/* A failure here would take the node of a batch job out of service, so it is the tasks that fail. */
int slurm_spank_user_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	container.has_failed = container.is_wanted && start(spank);
	return 0;
}

int enter_container(void)
{
	if (!container.is_wanted || container.has_failed)
		return 0;
	close_files_on_exec();
	if (container.root < 0 || fchdir(container.root) || chroot(".") || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return chdir("/") ? -1 : 1;
}

/* In the container, as the user: slurmstepd has changed to the job's folder since. */
int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	const char *directory;

	(void)argc;
	(void)argv;
	if (!container.is_wanted)
		return 0;
	if (container.has_failed)
		_exit(1);
	directory = container.words[container.variables + 1];
	if (chdir(directory)) {
		slurm_error("container: cannot start in %s: %m", directory);
		_exit(1);
	}
	for (int i = 1; i <= container.variables; i++) {
		char *value = strchr(container.words[i], '=');

		if (!value)
			continue;
		*value = '\0';
		spank_setenv(spank, container.words[i], value + 1, 1);
		*value = '=';
	}
	if (chosen[REMAP_ROOT] && container.uid && appear_as_root()) {
		slurm_error("container: --container-remap-root: %m");
		_exit(1);
	}
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char *argv[])
{
	size_t none = 0;

	(void)argc;
	(void)argv;
	say_what_ended_for_memory();
	if (chosen[SAVE] && container.root >= 0 && !--container.tasks_left)
		run(spank, "save", NULL, &none, container.image);
	return 0;
}

int slurm_spank_exit(spank_t spank, int argc, char *argv[])
{
	size_t none = 0;

	(void)argc;
	(void)argv;
	if (spank_context() != S_CTX_REMOTE || container.root < 0)
		return 0;
	close(container.root);
	close(container.image);
	close(container.socket);
	container.root = -1;
	if (!chosen[NAME])
		run(spank, "remove", NULL, &none, -1);
	return 0;
}
