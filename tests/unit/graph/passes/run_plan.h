#pragma once
#include "graph/plan/plan.h"

#include <map>
#include <string>
#include <vector>

namespace sgactor::graph {

/// Elements of tensors by name, as f64 (integers too).
using Values = std::map<std::string, std::vector<double>>;

/// Runs a whole graph in the reference backend: `values` gives inputs by name (missing ones are
/// zeros), receives outputs.
Status run_graph(const Graph& graph, Values& values);

/// Runs a step of program 0 of a plan with the reference kernels. `state` holds persistent buffers
/// by name (missing ones are zeros) before and after; `batches[m]` those of micro-batch m.
///
/// By buffers: each buffer is a vector of its own and each subgraph runs with run_reference: checks
/// cuts, bindings and order.
Status run_by_buffers(const Plan& plan, const std::vector<Values>& batches, Values& state);
/// In one arena at the planned places, which starts as NaN: checks plan_memory too. Pre: storage is
/// kFloat64.
Status run_in_arena(const Plan& plan, const std::vector<Values>& batches, Values& state);

/// A step with one micro-batch of a plan of several pipeline stages that is not sharded otherwise:
/// stages take turns, each in its program order; what reads a receive waits for its send. By
/// buffers. Errors: kInvalidPlan if all wait.
Status run_stages(const Plan& plan, Values& state);

/// A step of the training and update graphs without any plan: what the two above must equal.
Status run_step(const Graph& training, const Graph& update, const std::vector<Values>& batches,
                Values& state);

}  // namespace sgactor::graph
