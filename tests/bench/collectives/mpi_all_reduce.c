/* Times MPI_Allreduce of floats in place: the median of a call at rank 0 for each size in bytes, as
 * JSON. The repeats are those of "sgactor bench collectives". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) printf("{\"rows\": [");
  for (int a = 1; a < argc; ++a) {
    const long long bytes = atoll(argv[a]);
    const int count = (int)(bytes / 4);
    float* input = calloc((size_t)count, sizeof(float));
    long long repeats = (256LL << 20) / bytes;
    if (repeats < 8) repeats = 8;
    if (repeats > 200) repeats = 200;
    double* seconds = malloc((size_t)repeats * sizeof(double));
    double cpu = 0;
    for (long long i = -3; i < repeats; ++i) {
      if (i == 0) cpu = cpu_seconds();
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, input, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= 0) seconds[i] = MPI_Wtime() - start;
    }
    cpu = (cpu_seconds() - cpu) / (double)repeats;
    qsort(seconds, (size_t)repeats, sizeof(double), compare);
    if (rank == 0)
      printf("%s{\"bytes\": %lld, \"time_us\": %.2f, \"cpu_us\": %.2f}", a == 1 ? "" : ", ", bytes,
             seconds[repeats / 2] * 1e6, cpu * 1e6);
    free(seconds);
    free(input);
  }
  if (rank == 0) printf("]}\n");
  MPI_Finalize();
  return 0;
}
