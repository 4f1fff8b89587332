#include "apps/sgactor/local_plane.h"

#include "actors/runtime/tls_identity.h"

#include <string>
#include <utility>

namespace sgactor::apps {

Result<std::unique_ptr<DataPlane>> create_local_plane(const graph::Plan& plan) {
  SGA_ASSIGN(const std::string secret, actors::random_bytes(32));
  constexpr actors::wire::PeerId kSelf = actors::wire::kCoordinatorPeer;
  DataPlaneOptions options;
  options.alone = true;
  SGA_ASSIGN(auto plane, DataPlane::create(kSelf, secret, options));
  actors::wire::Route all{kSelf, plane->address(), {}};
  for (size_t r = 0; r < plan.ranks.size(); ++r) all.ranks.push_back(static_cast<int32_t>(r));
  SGA_TRY(plane->connect({1, {std::move(all)}}));
  return plane;
}

}  // namespace sgactor::apps
