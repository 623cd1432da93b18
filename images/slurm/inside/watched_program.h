/* Runs a program of the shared root for a daemon, and never waits for it for ever. slurmstepd answers no signal
 * before its tasks run, so that a program that hung would hold the node until its container ended.
 *
 * Both pipes are read as they fill. A program that has said nothing for QUIET_TIME is ended; an empty line is a
 * sign of life. So is one whose job is over, as Slurm's controller says: the program runs as the job's user, who may
 * stop it or answer in its place. Ended means SIGTERM for its process group, and SIGKILL GRACE_TIME later.
 */
#ifndef NEOCLOUD_WATCHED_PROGRAM_H
#define NEOCLOUD_WATCHED_PROGRAM_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* In milliseconds. */
#ifndef QUIET_TIME
#define QUIET_TIME 60000
#endif
#ifndef GRACE_TIME
#define GRACE_TIME 5000
#endif
#ifndef ASK_TIME
#define ASK_TIME 5000 /* between two questions whether the job is over */
#endif
#define MOST_SECONDS_OF_A_QUESTION 10
#define LONGEST_LINE 2048
#define MOST_OF_MESSAGES (64 * 1024) /* in bytes; what comes after that is not shown */

enum { CALL_PIDFD_OPEN = 434 };

struct watched {
	void (*program)(void *of, int output, int messages); /* in the child; does not return */
	void (*ask)(void *of, int output); /* in a child: prints jobs as "NUMBER STATE", one a line; or NULL */
	void (*hear)(const char *line);
	void *of;
	const char *job;       /* its number; others may be listed, too */
	int time_after_job;    /* for which the program may run on when the job is over, in milliseconds */

	pid_t pid, asker;
	int output, messages, end, states; /* what is read, or -1; `end` becomes readable when the program has ended */
	char line[LONGEST_LINE], listed[64];
	size_t line_length, heard, listed_length;
	int runs, is_known; /* the job, by what was listed */
	long long last_sign, next_question, over_since, terminated, killed; /* in milliseconds; 0: not yet */
};

static long long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void close_one(int *descriptor)
{
	if (*descriptor >= 0)
		close(*descriptor);
	*descriptor = -1;
}

/* A child whose `reader` gets what it writes; -1 when there is none. */
static pid_t child_with_pipe(int *reader, int *writer)
{
	int ends[2];
	pid_t child;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	child = fork();
	if (!child) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL); /* slurmstepd blocks most, which exec keeps */
		close(ends[0]);
		*writer = ends[1];
		return 0;
	}
	close(ends[1]);
	*reader = ends[0];
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	return child;
}

static int start_watched(struct watched *watched)
{
	int messages[2], output;

	watched->output = watched->messages = watched->end = watched->states = -1;
	watched->asker = -1;
	if (pipe2(messages, O_CLOEXEC))
		return -1;
	watched->pid = child_with_pipe(&watched->output, &output);
	if (!watched->pid) {
		setpgid(0, 0);
		watched->program(watched->of, output, messages[1]);
		_exit(120);
	}
	close(messages[1]);
	watched->messages = messages[0];
	if (watched->pid < 0)
		return -1;
	setpgid(watched->pid, watched->pid); /* whichever of both comes first */
	fcntl(messages[0], F_SETFL, O_NONBLOCK);
	watched->end = syscall(CALL_PIDFD_OPEN, watched->pid, 0);
	watched->last_sign = milliseconds();
	watched->next_question = watched->last_sign + ASK_TIME;
	return 0;
}

static void end_watched(struct watched *watched, const char *why)
{
	if (watched->terminated)
		return;
	watched->terminated = milliseconds();
	watched->hear(why);
	kill(-watched->pid, SIGTERM);
	kill(-watched->pid, SIGCONT);
}

static void hear_line(struct watched *watched)
{
	watched->line[watched->line_length] = '\0';
	if (watched->line_length && watched->heard <= MOST_OF_MESSAGES)
		watched->hear(watched->line);
	watched->heard += watched->line_length;
	watched->line_length = 0;
}

/* What there is to read now. The end of a pipe is no end of the program, which may have closed it. */
static void read_messages(struct watched *watched)
{
	char part[4096];
	ssize_t length = 1, i;
	int rounds;

	/* Then back to the other pipe and the clock, however much more there is. */
	for (rounds = 0; rounds < 32 && (length = read(watched->messages, part, sizeof part)) > 0; rounds++) {
		watched->last_sign = milliseconds();
		for (i = 0; i < length; i++)
			if (part[i] == '\n' || watched->line_length == sizeof watched->line - 1)
				hear_line(watched);
			else
				watched->line[watched->line_length++] = part[i];
	}
	if (!length || (length < 0 && errno != EAGAIN && errno != EINTR))
		close_one(&watched->messages);
}

static void read_output(struct watched *watched, char *output, size_t *size, size_t room)
{
	char more;
	ssize_t length;

	while (*size < room && (length = read(watched->output, output + *size, room - *size)) > 0)
		*size += length;
	if (*size == room)
		length = read(watched->output, &more, 1);
	if (*size == room && length > 0)
		end_watched(watched, "error: its answer is too long");
	if (length >= 0 || (errno != EAGAIN && errno != EINTR))
		close_one(&watched->output);
}

/* Slurm has more states for each way in which a job ends, or waits for its next run. */
static int is_of_running_job(const char *state)
{
	static const char *states[] = {"RUNNING",   "CONFIGURING", "SUSPENDED",     "STOPPED",
				       "SIGNALING", "RESIZING",    "POWER_UP_NODE", NULL};

	for (const char **each = states; *each; each++)
		if (!strcmp(state, *each))
			return 1;
	return 0;
}

static void read_listed_job(struct watched *watched)
{
	size_t length = strlen(watched->job);

	watched->listed[watched->listed_length] = '\0';
	watched->listed_length = 0;
	if (strncmp(watched->listed, watched->job, length) || watched->listed[length] != ' ')
		return;
	watched->is_known = 1;
	watched->runs |= is_of_running_job(watched->listed + length + 1);
}

static void start_asking(struct watched *watched)
{
	int output;

	watched->listed_length = watched->is_known = watched->runs = 0;
	watched->asker = child_with_pipe(&watched->states, &output);
	if (!watched->asker) {
		alarm(MOST_SECONDS_OF_A_QUESTION);
		watched->ask(watched->of, output);
		_exit(120);
	}
	watched->next_question = milliseconds() + ASK_TIME;
}

static void stop_asking(struct watched *watched)
{
	close_one(&watched->states);
	if (watched->asker > 0) {
		kill(watched->asker, SIGKILL);
		waitpid(watched->asker, NULL, 0);
	}
	watched->asker = -1;
}

/* What Slurm said of the job so far. That it said nothing does not mean that the job is over. */
static void read_states(struct watched *watched)
{
	char part[1024];
	ssize_t length = read(watched->states, part, sizeof part), i;

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	for (i = 0; i < length; i++)
		if (part[i] == '\n')
			read_listed_job(watched);
		else if (watched->listed_length < sizeof watched->listed - 1)
			watched->listed[watched->listed_length++] = part[i];
	if (length > 0)
		return;
	stop_asking(watched);
	if (watched->is_known && !watched->runs && !watched->over_since)
		watched->over_since = milliseconds();
}

static long long least(long long one, long long other)
{
	return one < other ? one : other;
}

/* Do what time says, and return for how long nothing more is to be done. */
static int look_at_clock(struct watched *watched)
{
	long long now = milliseconds(), next;

	if (watched->ask && now >= watched->next_question && watched->states < 0 && !watched->over_since)
		start_asking(watched);
	if (now >= watched->last_sign + QUIET_TIME)
		end_watched(watched, "error: its program said nothing for too long and was ended");
	if (watched->over_since && now >= watched->over_since + watched->time_after_job)
		end_watched(watched, "error: the job is over, and so the program of its container was ended");
	if (!watched->terminated) {
		next = watched->last_sign + QUIET_TIME;
		if (watched->ask)
			next = least(watched->next_question, next);
		if (watched->over_since)
			next = watched->over_since + watched->time_after_job;
	} else {
		next = watched->terminated + GRACE_TIME;
		if (now >= next && !watched->killed) {
			watched->killed = now;
			kill(-watched->pid, SIGKILL);
			kill(watched->pid, SIGKILL); /* if it has left its group */
		}
	}
	/* A kernel without pidfd_open reports no end. */
	return (int)(least(next > now ? next - now : 100, watched->end < 0 ? 100 : 1000));
}

/* Run the program. Its messages are heard line by line; `output` gets what it prints, up to `size`.
 * Return its exit code, or -1 where it was ended or could not be started. */
static int watch(struct watched *watched, char *output, size_t *size)
{
	size_t room = *size;
	int status = 0, has_ended = 0;

	*size = 0;
	if (start_watched(watched)) {
		close_one(&watched->output);
		close_one(&watched->messages);
		return -1;
	}
	while (!has_ended) {
		struct pollfd ready[] = {
			{watched->output, POLLIN, 0}, {watched->messages, POLLIN, 0},
			{watched->states, POLLIN, 0}, {watched->end, POLLIN, 0},
		};

		poll(ready, 4, look_at_clock(watched));
		/* Before its pipes are looked at for the last time. */
		has_ended = waitpid(watched->pid, &status, WNOHANG) == watched->pid;
		if (watched->output >= 0)
			read_output(watched, output, size, room);
		if (watched->messages >= 0)
			read_messages(watched);
		if (watched->states >= 0 && ready[2].revents)
			read_states(watched);
		if (watched->killed && milliseconds() > watched->killed + GRACE_TIME)
			break; /* the kernel does not release it; a container's end does */
	}
	hear_line(watched);
	kill(-watched->pid, SIGKILL); /* what it started and left */
	stop_asking(watched);
	close_one(&watched->output);
	close_one(&watched->messages);
	close_one(&watched->end);
	return has_ended && !watched->terminated && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
