/* enter-root COMMAND...: run a program of the shared root, as the control plane and `su` of slurmstepd do.
 *
 * The program runs as root of the tenant: in the shared root, without what jail.h takes away, without the
 * container's environment, and, unless called as "su", without set-uid programs. Its standard input and
 * output are the only files it gets.
 */
#include "jail.h"

#include <stdio.h>

static int failed(const char *what)
{
	fprintf(stderr, "enter-root: %s: %s\n", what, strerror(errno));
	return 125;
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
		execv("/bin/su", argv);
	else
		execvp(argv[1], argv + 1);
	failed(is_su ? "su" : argv[1]);
	return errno == ENOENT ? 127 : 126;
}
