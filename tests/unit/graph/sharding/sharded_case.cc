#include "tests/unit/graph/sharding/sharded_case.h"

#include "graph/base/philox.h"
#include "graph/sharding/costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace sgactor::testing {
namespace {

using graph::Placement;

/// Calls f(index in the whole tensor or -1 for padding, rank, index on the rank).
void for_elements(const TensorType& type, int dim, int32_t members,
                  const std::function<void(int64_t, int32_t, int64_t)>& f) {
  const int64_t extent = type.shape.dim(dim);
  const int64_t piece = graph::shard_extent(extent, members);
  int64_t outer = 1;
  int64_t inner = 1;
  for (int d = 0; d < dim; ++d) outer *= type.shape.dim(d);
  for (int d = dim + 1; d < type.shape.rank(); ++d) inner *= type.shape.dim(d);
  for (int32_t rank = 0; rank < members; ++rank) {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t p = 0; p < piece; ++p) {
        for (int64_t i = 0; i < inner; ++i) {
          const int64_t at = (rank * piece) + p;
          const int64_t whole = at < extent ? (((o * extent) + at) * inner) + i : -1;
          f(whole, rank, (((o * piece) + p) * inner) + i);
        }
      }
    }
  }
}

}  // namespace

std::vector<double> split(const std::vector<double>& whole, const TensorType& type,
                          Placement placement, int32_t rank, int32_t members) {
  if (placement.is_replicate()) return whole;
  std::vector<double> part;
  if (placement.is_shard()) {
    part.resize(static_cast<size_t>(graph::local_type(type, placement, members).num_elements()));
    for_elements(type, placement.dim, members, [&](int64_t w, int32_t r, int64_t local) {
      if (r == rank && w >= 0) part[static_cast<size_t>(local)] = whole[static_cast<size_t>(w)];
    });
    return part;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    double rest = whole[i];
    double mine = 0;
    for (int32_t r = 0; r < members; ++r) {
      const PhiloxStream random{7, static_cast<uint64_t>(r)};
      const double x = r + 1 == members ? rest : random.uniform(i) - 0.5;
      rest -= x;
      if (r == rank) mine = x;
    }
    part.push_back(mine);
  }
  return part;
}

std::vector<double> join(const std::vector<std::vector<double>>& parts, const TensorType& type,
                         Placement placement) {
  const auto members = static_cast<int32_t>(parts.size());
  if (placement.is_replicate()) {
    for (const std::vector<double>& part : parts) EXPECT_EQ(part, parts[0]) << "replicas differ";
    return parts[0];
  }
  std::vector<double> whole(static_cast<size_t>(type.num_elements()));
  if (placement.is_shard()) {
    for_elements(type, placement.dim, members, [&](int64_t w, int32_t r, int64_t local) {
      const double x = parts[static_cast<size_t>(r)][static_cast<size_t>(local)];
      if (w >= 0) {
        whole[static_cast<size_t>(w)] = x;
      } else {
        EXPECT_EQ(x, 0) << "padding of rank " << r;
      }
    });
    return whole;
  }
  for (const std::vector<double>& part : parts) {
    for (size_t i = 0; i < whole.size(); ++i) whole[i] += part[i];
  }
  return whole;
}

std::vector<RankNumbers> split_inputs(const graph::Graph& whole, const graph::Graph& sharded,
                                      const std::vector<Placement>& placements,
                                      const RankNumbers& numbers, int32_t members) {
  std::vector<RankNumbers> ranks;
  for (int32_t r = 0; r < members; ++r) {
    RankNumbers inputs;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const TensorType& type = whole.type(whole.inputs()[i].value);
      inputs.push_back(split(numbers[i], type, placements[i], r, members));
    }
    inputs.resize(sharded.inputs().size());
    ranks.push_back(std::move(inputs));
  }
  return ranks;
}

std::vector<std::vector<double>> output_of(const std::vector<RankNumbers>& ranks, size_t i) {
  std::vector<std::vector<double>> parts;
  for (const RankNumbers& rank : ranks) parts.push_back(rank[i]);
  return parts;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    ASSERT_LE(std::fabs(a[i] - b[i]), tolerance * std::max(1.0, std::fabs(b[i])))
        << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

}  // namespace sgactor::testing
