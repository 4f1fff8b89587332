// The strategies that ship with the program.
#include "actors/strategy/plugin_loader.h"

namespace sgactor::actors {
namespace {

Status takes_no_options(const JobFacts& job) { return job.options.check_known({}); }

Result<std::vector<graph::ParameterRule>> whole_vocabulary(const JobFacts& /*job*/) {
  return std::vector<graph::ParameterRule>{{"*.embed_tokens.weight", -1, 0, ""},
                                           {"lm_head.weight", -1, 0, ""}};
}

}  // namespace

void add_builtin_strategies(StrategyTable& table) {
  table.add({.name = "mesh",
             .summary = "data parallel, ZeRO, tensor parallel and pipeline, as [parallelism] says",
             .check = takes_no_options});
  table.add({.name = "replicated-vocabulary",
             .summary = "as mesh, but embedding and head are whole on every rank of tp",
             .check = takes_no_options,
             .parameter_rules = whole_vocabulary});
}

}  // namespace sgactor::actors
