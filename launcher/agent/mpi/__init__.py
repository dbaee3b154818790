"""MPI: the user's mpirun starts the ranks, and the agents are its remote shell and the parents of its workers."""
