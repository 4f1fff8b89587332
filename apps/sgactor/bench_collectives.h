#pragma once
#include "apps/sgactor/command_line.h"

namespace CLI {
class App;
}

namespace sgactor::apps {

/// Adds "sgactor bench collectives" to `bench`: all-reduce between processes of this machine.
void add_bench_collectives(CLI::App& bench, CommandLine& line);

}  // namespace sgactor::apps
