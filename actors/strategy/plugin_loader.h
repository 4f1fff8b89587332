#pragma once
#include "actors/strategy/strategy.h"
#include "graph/base/status.h"

#include <string>

namespace sgactor::actors {

/// Opens the shared library `path` and adds its strategies to `table`. The library stays open to
/// the end of the process, as objects of its types may live as long. From main's thread. Errors,
/// one line that names `path`, `table` unchanged: kInvalidArgument: the file is missing, is no
/// library or no plug-in, was built for another SDK or compiler, throws, adds nothing, a strategy
/// without a name, or a name that is taken.
Status load_plugin(const std::string& path, StrategyTable& table);

/// The row of that name; null if there is none.
const Strategy* find_strategy(const StrategyTable& table, const std::string& name);

/// What ships: "mesh", the job's parallelism as it is, and "replicated-vocabulary", which keeps the
/// embedding and the head whole on every rank of tp.
void add_builtin_strategies(StrategyTable& table);

}  // namespace sgactor::actors
