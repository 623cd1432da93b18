/* Does to the control group of a job what its arguments say (images/slurm/inside/job_groups.h). */
#define _GNU_SOURCE
#include <stdlib.h>

#include "job_groups.h"

/* make JOB MIB | write JOB FILE TEXT | join JOB | end JOB | ended JOB */
int main(int argc, char *argv[])
{
	unsigned int job = argc > 2 ? atoi(argv[2]) : 0;

	if (!has_groups())
		return 3;
	if (argc == 4 && !strcmp(argv[1], "make"))
		return -make_group(job, strtoul(argv[3], NULL, 10));
	if (argc == 5 && !strcmp(argv[1], "write"))
		return -write_group(job, argv[3], argv[4]);
	if (argc == 3 && !strcmp(argv[1], "join"))
		return -join_group(job);
	if (argc == 3 && !strcmp(argv[1], "end"))
		return -end_group(job);
	if (argc == 3 && !strcmp(argv[1], "ended"))
		return printf("%lu\n", ended_for_memory(job)) < 0;
	return 2;
}
