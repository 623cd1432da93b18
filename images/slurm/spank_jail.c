/* Shows a job the shared root as "/".
 *
 * slurmd and slurmstepd live in the container's own root; the shared root is mounted at /jail with this
 * node's /proc, /dev, /tmp and so on laid over it. Each task, still as root and just before it becomes the
 * user, gets a mount namespace of its own in which /jail is moved onto "/". The working directory stays the
 * same by name. Finally SYS_ADMIN is taken from the task for good: a job may be root, but it can neither
 * mount, nor look into the daemons' root through /proc/<pid>/root.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <slurm/spank.h>

#define JAIL "/jail"
#define CAP_SYS_ADMIN 21

SPANK_PLUGIN(neocloud_jail, 1)

static int failed(const char *what)
{
	slurm_error("jail: %s: %m", what);
	return -1;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char *argv[])
{
	char directory[PATH_MAX];

	(void)spank;
	(void)argc;
	(void)argv;
	if (!getcwd(directory, sizeof directory))
		directory[0] = '\0';
	if (unshare(CLONE_NEWNS))
		return failed("cannot make a mount namespace");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return failed("cannot make mounts private");
	if (chdir(JAIL) || mount(".", "/", NULL, MS_MOVE, NULL))
		return failed("cannot move the shared root to /");
	if (chroot(".") || chdir("/"))
		return failed("cannot enter the shared root");
	if (prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0))
		return failed("cannot give up SYS_ADMIN");
	if (directory[0] && chdir(directory))
		slurm_info("jail: %s is not in the shared root; starting in /", directory);
	return 0;
}
