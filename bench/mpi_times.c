/* Prints microseconds, medians of many: a message of 8 bytes one way, an all-reduce of 8 bytes, one of 1 MiB. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 500, LARGE_ROUNDS = 30, LARGE = 1 << 17 };

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

static double median(double *times, int count)
{
	qsort(times, count, sizeof *times, compare);
	return times[count / 2] * 1e6;
}

int main(int argc, char *argv[])
{
	static double times[ROUNDS], from[LARGE], to[LARGE];
	double begin, message, small, large;
	int rank, i;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Barrier(MPI_COMM_WORLD);
	for (i = 0; i < ROUNDS; i++) {
		begin = MPI_Wtime();
		if (rank == 0)
			MPI_Send(from, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
		if (rank < 2)
			MPI_Recv(to, 1, MPI_DOUBLE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(from, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
		times[i] = (MPI_Wtime() - begin) / 2;
	}
	message = median(times, ROUNDS);
	for (i = 0; i < ROUNDS; i++) {
		begin = MPI_Wtime();
		MPI_Allreduce(from, to, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		times[i] = MPI_Wtime() - begin;
	}
	small = median(times, ROUNDS);
	for (i = 0; i < LARGE_ROUNDS; i++) {
		begin = MPI_Wtime();
		MPI_Allreduce(from, to, LARGE, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		times[i] = MPI_Wtime() - begin;
	}
	large = median(times, LARGE_ROUNDS);
	if (rank == 0)
		printf("%.2f %.2f %.1f\n", message, small, large);
	MPI_Finalize();
	return 0;
}
