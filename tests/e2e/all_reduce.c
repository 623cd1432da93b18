/* Sums one number and a long vector over all ranks, and prints what each rank found. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 1 << 20 };

int main(int argc, char *argv[])
{
	int rank, ranks, length, wrong = 0;
	long own, sum;
	char node[MPI_MAX_PROCESSOR_NAME];
	double *values = malloc(LENGTH * sizeof *values);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Get_processor_name(node, &length);
	own = rank + 1;
	MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < LENGTH; i++)
		values[i] = (rank + 1) * (double)i;
	MPI_Allreduce(MPI_IN_PLACE, values, LENGTH, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < LENGTH; i++)
		wrong += values[i] != sum * (double)i;
	printf("rank %d of %d on %s: sum %ld, %d wrong\n", rank, ranks, node, sum, wrong);
	MPI_Finalize();
	return wrong != 0;
}
