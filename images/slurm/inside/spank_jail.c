/* Shows a job the shared root as "/".
 *
 * slurmd and slurmstepd live in the container's own root; the shared root is mounted at /jail with this
 * node's /proc, /dev, /tmp and so on mounted over it. Each task enters it, still as root and just before it
 * becomes the user. The working directory stays the same by name. Finally the task gives up, for good, what
 * a tenant does not keep (jail.h): it may be root, but it can neither mount, nor change its root directory,
 * nor look into the daemons' root through /proc/<pid>/root.
 */
#include "jail.h"

#include <slurm/spank.h>

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
	if (enter_shared_root())
		return failed("cannot enter the shared root");
	if (limit_capabilities(TENANT_CAPABILITIES))
		return failed("cannot give up capabilities");
	if (directory[0] && chdir(directory))
		slurm_info("jail: %s is not in the shared root; starting in /", directory);
	return 0;
}
