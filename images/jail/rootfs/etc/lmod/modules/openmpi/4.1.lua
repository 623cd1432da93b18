help([[OpenMPI of Debian. It is on the path without this module: mpicc, mpirun, srun --mpi=pmix.]])
whatis("OpenMPI 4.1, with PMIx 4.2")
setenv("MPI_HOME", "/usr/lib/x86_64-linux-gnu/openmpi")
