/* The control groups of jobs: with one, the kernel keeps a job to its memory and CPUs, whatever its programs do.
 *
 * They are there where `delegate-cgroups` could make their parent (version 2). `shared-root serve` makes and removes
 * the group of a job, the job plugin names its CPUs, and each task joins it before it enters the shared root, which
 * shows control groups only to read.
 */
#ifndef NEOCLOUD_JOB_GROUPS_H
#define NEOCLOUD_JOB_GROUPS_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef GROUPS
#define GROUPS "/run/neocloud/cgroups/jobs"
#endif
enum { GROUP_PATH = 128, ENDING_ROUNDS = 100, ENDING_MICROSECONDS = 10000 };

static int has_groups(void)
{
	return !access(GROUPS, F_OK);
}

/* 0 when it was written. */
static int write_group(unsigned int job, const char *name, const char *text)
{
	char path[GROUP_PATH];
	int file, result;

	snprintf(path, sizeof path, GROUPS "/%u/%s", job, name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	result = write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
	close(file);
	return result;
}

/* The group of a job with a limit of memory; `mib` is 0 for a job without one. */
static int make_group(unsigned int job, unsigned long mib)
{
	char path[GROUP_PATH], bytes[32] = "max";

	snprintf(path, sizeof path, GROUPS "/%u", job);
	if (mkdir(path, 0755) && errno != EEXIST)
		return -1;
	if (mib)
		snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)mib << 20);
	write_group(job, "memory.swap.max", "0"); /* a kernel without swap has no such file */
	return write_group(job, "memory.max", bytes);
}

/* End all processes of a job, also those that left its session, and remove its group. */
static int end_group(unsigned int job)
{
	char path[GROUP_PATH];
	int rounds = 0;

	snprintf(path, sizeof path, GROUPS "/%u", job);
	write_group(job, "cgroup.kill", "1"); /* Linux 5.14; before, processes are found by their /tmp */
	while (rmdir(path) && errno == EBUSY && ++rounds < ENDING_ROUNDS)
		usleep(ENDING_MICROSECONDS);
	return access(path, F_OK) ? 0 : -1;
}

/* This process, and what it starts, belongs to the job. */
static int join_group(unsigned int job)
{
	return write_group(job, "cgroup.procs", "0");
}

/* How many processes of a job the kernel ended since they would have had more than its memory. */
static unsigned long ended_for_memory(unsigned int job)
{
	char path[GROUP_PATH], line[64];
	unsigned long count = 0;
	FILE *file;

	snprintf(path, sizeof path, GROUPS "/%u/memory.events", job);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file) && sscanf(line, "oom_kill %lu", &count) != 1)
		;
	if (file)
		fclose(file);
	return count;
}

#endif
