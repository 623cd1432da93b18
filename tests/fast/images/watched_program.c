/* Runs a shell command as slurmstepd runs the program of containers (images/slurm/inside/watched_program.h). */
#define _GNU_SOURCE
#include <stdio.h>

#include "watched_program.h"

static void run_shell(const char *command, int output, int messages)
{
	dup2(output, 1);
	dup2(messages, 2);
	execl("/bin/sh", "sh", "-c", command, NULL);
}

static void program(void *of, int output, int messages)
{
	run_shell(((char **)of)[1], output, messages);
}

static void ask(void *of, int output)
{
	run_shell(((char **)of)[2], output, 2);
}

static void hear(const char *line)
{
	printf("%s\n", line);
}

/* PROGRAM QUESTION JOB TIME-AFTER-JOB MOST-BYTES: prints its messages, then its exit code and how much it answered. */
int main(int argc, char *argv[])
{
	struct watched watched = {0};
	size_t size = argc == 6 ? atoi(argv[5]) : 0;
	char *answer = malloc(size + 1);
	int code;

	watched.program = program;
	watched.ask = ask;
	watched.hear = hear;
	watched.of = argv;
	watched.job = argv[3];
	watched.time_after_job = atoi(argv[4]);
	code = watch(&watched, answer, &size);
	printf("%d %zu\n", code, size);
	return 0;
}
