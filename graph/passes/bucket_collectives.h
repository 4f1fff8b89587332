#pragma once
#include "graph/plan/plan.h"

#include <cstdint>

namespace sgactor::graph {

/// Cuts the gathers of parameters and the sums of gradients over data-parallel ranks into buckets
/// of about `bytes`: launches of one kind, group and phase that stand in one stretch of a
/// micro-batch are joined, and ones that are larger are cut between two tensors. A tensor is never
/// cut: one that is larger than `bytes` has a bucket alone. What ZeRO 3 gathers for one use is cut,
/// never joined, since it would be held for longer. Sums fill up in the order in which
/// gradients are there, gathers in that in which parameters are read. Tensors that cannot wait for
/// each other (one's reader comes before the other's producer) stay apart.
///
/// The pairs of an operation do not see each other, so the bits do not change. Names: a bucket has
/// that of its first launch, ".1" … for later parts of that, "+2" where it holds tensors of two
/// more launches. Keys are the first launch's, or new ones behind all of the plan.
/// Pre: as schedule_collectives, before lanes are made; bytes > 0. Pure.
void bucket_collectives(Plan& plan, int64_t bytes);

/// How many operations a step of `program` has that bucket_collectives may join or cut.
int32_t count_buckets(const Plan& plan, const RankProgram& program);

}  // namespace sgactor::graph
