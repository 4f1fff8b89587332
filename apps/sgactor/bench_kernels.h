#pragma once
#include "apps/sgactor/command_line.h"

namespace sgactor::apps {

/// `sgactor bench kernels`: single ops of a Llama layer on a device.
void add_bench_kernels(CLI::App& bench, CommandLine& line);

}  // namespace sgactor::apps
