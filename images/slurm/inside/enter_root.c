/* enter-root COMMAND...: run a program of the shared root, as the control plane and `su` of slurmd do.
 *
 * The program runs as root of the tenant: in the shared root, without what jail.h takes away, without the
 * container's environment, and, unless called as "su", without set-uid programs. Its standard input and
 * output are the only files it gets.
 *
 * slurmd calls "su" for the environment of a user's login (sbatch --export=NONE and --get-user-env). Whatever the
 * user's profile does or leaves running, it has what was printed within the time that Slurm's manual names.
 */
#include "jail.h"

#include <stdio.h>

#define QUIET_TIME 8000 /* for all of it: nothing is heard of the login but its output */
#define GRACE_TIME 500
#include "watched_program.h"

#define MOST_OF_ENVIRONMENT (256 * 1024) /* as slurmd takes */

static int failed(const char *what)
{
	fprintf(stderr, "enter-root: %s: %s\n", what, strerror(errno));
	return 125;
}

/* slurmd has the environment printed by its own program, which the shared root does not have: by env instead. */
static char *printed_by_env(const char *command)
{
	const char *end = strstr(command, " getenv;"), *begin = end;
	char *changed;

	while (begin && begin > command && begin[-1] != ' ')
		begin--;
	if (!end || asprintf(&changed, "%.*s/usr/bin/env%s", (int)(begin - command), command, end + strlen(" getenv")) < 0)
		return (char *)command;
	return changed;
}

static void login(void *of, int output, int messages)
{
	char **words = of;
	int nothing = open("/dev/null", O_RDWR);

	(void)messages;
	dup2(nothing, 0);
	dup2(output, 1);
	dup2(nothing, 2);
	for (char **each = words; *each; each++)
		if (!strcmp(*each, "-c") && each[1]) {
			*each = "--session-command"; /* the same, in the group of processes that is ended with it */
			each[1] = printed_by_env(each[1]);
			break;
		}
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	execv("/bin/su", words);
	_exit(127);
}

static void ignore(const char *line)
{
	(void)line;
}

static int print_environment(char *words[])
{
	static char text[MOST_OF_ENVIRONMENT];
	size_t size = sizeof text, at = 0;
	struct watched watched = {0};
	ssize_t length;
	int code;

	watched.program = login;
	watched.hear = ignore;
	watched.of = words;
	code = watch(&watched, text, &size);
	for (; at < size; at += length)
		if ((length = write(1, text + at, size - at)) <= 0)
			return 1;
	return code < 0 ? 1 : code;
}

int main(int argc, char *argv[])
{
	static char *environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=/root", "USER=root", "LOGNAME=root", NULL,
	};
	const char *name = strrchr(argv[0], '/');
	int is_su = !strcmp(name ? name + 1 : argv[0], "su");

	if (!is_su && argc < 2) {
		fprintf(stderr, "usage: enter-root COMMAND...\n");
		return 2;
	}
	if (enter_shared_root(JAIL))
		return failed("cannot enter the shared root");
	if (limit_capabilities(TENANT_CAPABILITIES))
		return failed("cannot give up capabilities");
	if (!is_su && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return failed("cannot refuse new privileges");
	clearenv();
	for (char **each = environment; *each; each++)
		putenv(*each);
	if (is_su)
		return print_environment(argv);
	execvp(argv[1], argv + 1);
	failed(argv[1]);
	return errno == ENOENT ? 127 : 126;
}
