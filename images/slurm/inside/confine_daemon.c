/* confine-daemon COMMAND...: run slurmd or sshd so that a tenant who takes it over gains nothing.
 *
 * It sees the same mounts, also those made later, but "/" only to read: nobody who gets a daemon to write
 * somewhere changes what the container executes when it starts again with the right to mount. The daemon and
 * all that it starts cannot mount and make no namespaces.
 *
 * slurmd gets a user's environment for sbatch --export=NONE in namespaces of its own, and ends when they are refused,
 * unless the kernel says that there are none to have: then it does without. So that is what the daemons read.
 */
#include "jail.h"

#include <stdio.h>

#define LIMIT_OF_NAMESPACES "/proc/sys/user/max_pid_namespaces"
#define NO_NAMESPACES "/usr/local/lib/neocloud/no-namespaces"

static int failed(const char *what)
{
	fprintf(stderr, "confine-daemon: %s: %s\n", what, strerror(errno));
	return 125;
}

int main(int argc, char *argv[])
{
	if (argc < 2) {
		fprintf(stderr, "usage: confine-daemon COMMAND...\n");
		return 2;
	}
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		return failed("cannot make a mount namespace");
	if (mount(NO_NAMESPACES, LIMIT_OF_NAMESPACES, NULL, MS_BIND, NULL) && errno != ENOENT)
		return failed("cannot hide that there are namespaces");
	if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
		return failed("cannot make / read-only");
	if (refuse_kernel_calls())
		return failed("cannot refuse kernel calls");
	if (limit_capabilities(DAEMON_CAPABILITIES))
		return failed("cannot give up capabilities");
	execvp(argv[1], argv + 1);
	return failed(argv[1]);
}
