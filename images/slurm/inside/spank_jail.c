/* Shows a job the shared root as "/", and keeps it to what it was given.
 *
 * slurmd and slurmstepd live in the container's own root; the shared root is mounted at /jail with this
 * node's /proc, /dev, /run and so on mounted over it. A job has a view of it with a /tmp and a /dev/shm of its
 * own, which `shared-root serve` mounts. Each task enters it, still as root and just before it becomes the user.
 * The working directory stays the same by name. Finally the task drops permanently what a tenant does not keep
 * (jail.h): it may be root, but it can neither mount, nor change its root directory, nor look into the daemons'
 * root through /proc/<pid>/root. Tasks of a step with --container-image enter that container instead
 * (container.c), and give up the same. Tasks run on the CPUs of their step, where the node has CPUs of its own; where
 * there are control groups (job_groups.h), the kernel keeps them to the memory and the CPUs of their job.
 */
#include "jail.h"
#include "container.h"
#include "job_groups.h"
#include "mount_server.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

#include <slurm/spank.h>

SPANK_PLUGIN(neocloud_jail, 1)

/* Processes and threads of one user on a node: fewer than its container may have, so that slurmd can start others. */
enum { PROCESSES = 4096, PROCESSES_PER_CPU = 256, MOST_PROCESSES = 24576 };

/* Of the job: slurmstepd, which is root, would make a folder of the job's user in the folder that it names. */
#define PMIX_FOLDER "SLURM_PMIX_TMPDIR"

enum { GROUP_CPUS = 4096 }; /* length of a list of CPUs; the kernel takes as much as a page */

#define OWN_CPUS "/run/neocloud/own-cpus" /* the entrypoint writes it */

char job_root[JOB_ROOT] = JAIL;
static uint32_t job;
static uint64_t job_mib;

static int failed(const char *what)
{
	slurm_error("jail: %s: %m", what);
	return -1;
}

/* The kernel's numbers of this node's CPUs, in Slurm's order; none where the node has fewer or more. */
static int read_own_cpus(int numbers[CPU_SETSIZE])
{
	FILE *file = fopen(OWN_CPUS, "re");
	int count = 0;

	if (!file)
		return 0;
	while (count < CPU_SETSIZE && fscanf(file, "%d", &numbers[count]) == 1 && numbers[count] >= 0 &&
	       numbers[count] < CPU_SETSIZE)
		count++;
	fclose(file);
	return count;
}

/* The kernel's numbers of a list of Slurm's, such as "0-1,3"; how many there are. Slurm's own plugins (task/affinity,
 * task/cgroup) count the CPUs of the whole machine, which has several nodes. */
static int kernel_cpus(const char *list, cpu_set_t *chosen)
{
	int numbers[CPU_SETSIZE], count = read_own_cpus(numbers);
	char *end;
	long cpu, last;

	CPU_ZERO(chosen);
	do {
		cpu = last = strtol(list, &end, 10);
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (; cpu >= 0 && cpu <= last && cpu < count; cpu++)
			CPU_SET(numbers[cpu], chosen);
		list = end + 1;
	} while (*end == ',');
	return CPU_COUNT(chosen);
}

/* The task runs on the CPUs that Slurm gave its step, unless it changes its affinity. */
static void keep_to_cpus(spank_t spank)
{
	char *list = NULL;
	cpu_set_t chosen;

	if (spank_get_item(spank, S_STEP_ALLOC_CORES, &list) == ESPANK_SUCCESS && list &&
	    kernel_cpus(list, &chosen) && sched_setaffinity(0, sizeof chosen, &chosen))
		slurm_info("jail: cannot keep to CPUs %s: %m", list);
}

/* No process of the job runs on other CPUs than those of the job. */
static void limit_cpus(spank_t spank)
{
	char *list = NULL, numbers[GROUP_CPUS] = "";
	cpu_set_t chosen;
	int cpu, length = 0;

	if (spank_get_item(spank, S_JOB_ALLOC_CORES, &list) != ESPANK_SUCCESS || !list ||
	    !kernel_cpus(list, &chosen))
		return;
	for (cpu = 0; cpu < CPU_SETSIZE && length < GROUP_CPUS - 8; cpu++)
		if (CPU_ISSET(cpu, &chosen))
			length += snprintf(numbers + length, 8, "%s%d", length ? "," : "", cpu);
	if (write_group(job, "cpuset.cpus", numbers))
		slurm_info("jail: the kernel does not keep the job to CPUs %s: %m", list);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	char request[LONGEST_REQUEST];

	(void)argc;
	(void)argv;
	if (spank_remote(spank) != 1 || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return 0;
	spank_unsetenv(spank, PMIX_FOLDER);
	spank_get_item(spank, S_JOB_ALLOC_MEM, &job_mib);
	snprintf(request, sizeof request, "job %u %llu", job, (unsigned long long)job_mib);
	if (ask_to_mount(request))
		return failed("cannot make the job's own /tmp");
	snprintf(job_root, sizeof job_root, JOBS "/%u", job);
	if (has_groups())
		limit_cpus(spank);
	return 0;
}

/* When memory runs out, a job's process ends before the daemons; and no user takes all processes. */
static void limit_harm(void)
{
	int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	long most = PROCESSES + PROCESSES_PER_CPU * sysconf(_SC_NPROCESSORS_ONLN);
	struct rlimit processes;

	if (file < 0 || write(file, "500", 3) != 3)
		slurm_info("jail: cannot set oom_score_adj: %m");
	if (file >= 0)
		close(file);
	if (most > MOST_PROCESSES)
		most = MOST_PROCESSES;
	if (!getrlimit(RLIMIT_NPROC, &processes) && processes.rlim_max > (rlim_t)most) {
		processes.rlim_cur = processes.rlim_max = most;
		setrlimit(RLIMIT_NPROC, &processes);
	}
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char *argv[])
{
	char directory[PATH_MAX];
	int is_in_container;

	(void)argc;
	(void)argv;
	limit_harm();
	if (has_groups() && join_group(job))
		slurm_info("jail: the kernel does not keep this task to the job's memory and CPUs: %m");
	keep_to_cpus(spank);
	is_in_container = enter_container();
	if (is_in_container < 0)
		return failed("cannot enter the container");
	if (is_in_container)
		return limit_capabilities(TENANT_CAPABILITIES) ? failed("cannot give up capabilities") : 0;
	if (!getcwd(directory, sizeof directory))
		directory[0] = '\0';
	if (enter_shared_root(job_root))
		return failed("cannot enter the shared root");
	if (limit_capabilities(TENANT_CAPABILITIES))
		return failed("cannot give up capabilities");
	if (directory[0] && chdir(directory))
		slurm_info("jail: %s is not in the shared root; starting in /", directory);
	return 0;
}

/* Slurm sees that a task was killed, not why. */
void say_what_ended_for_memory(void)
{
	static unsigned long known;
	unsigned long ended = job && has_groups() ? ended_for_memory(job) : 0;

	if (ended > known)
		slurm_error("jail: the job needed more than its %llu MiB of memory, and the kernel ended a process of it; "
			    "request more with --mem",
			    (unsigned long long)job_mib);
	known = ended;
}
