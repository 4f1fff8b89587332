#include "graph/plan/program_order.h"

#include <algorithm>
#include <tuple>

namespace sgactor::graph {

std::vector<OrderedFiring> program_order(const RankProgram& program) {
  std::vector<OrderedFiring> others;
  for (size_t lane = 1; lane < program.lanes.size(); ++lane) {
    for (size_t p = 0; p < program.lanes[lane].order.size(); ++p) {
      others.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(p)});
    }
  }
  const auto firing = [&](const OrderedFiring& at) -> const Firing& {
    return program.lanes[static_cast<size_t>(at.lane)].order[static_cast<size_t>(at.position)];
  };
  std::stable_sort(others.begin(), others.end(),
                   [&](const OrderedFiring& a, const OrderedFiring& b) {
                     const Firing& x = firing(a);
                     const Firing& y = firing(b);
                     return std::tie(x.start, x.micro_batch, x.launch) <
                            std::tie(y.start, y.micro_batch, y.launch);
                   });
  const auto num_computing = static_cast<int32_t>(program.lanes[0].order.size());
  std::vector<OrderedFiring> order;
  order.reserve(others.size() + program.lanes[0].order.size());
  size_t next = 0;
  for (int32_t p = 0; p < num_computing; ++p) {
    for (; next < others.size() && firing(others[next]).start <= p; ++next) {
      order.push_back(others[next]);
    }
    order.push_back({0, p});
  }
  order.insert(order.end(), others.begin() + static_cast<std::ptrdiff_t>(next), others.end());
  return order;
}

}  // namespace sgactor::graph
