#include "apps/sgactor/data_plane.h"

#include "actors/runtime/tls_identity.h"
#include "apps/sgactor/fabric_hash.h"
#include "transport/inproc/inproc_fabric.h"
#include "transport/ucx/process_fabric.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <set>
#include <vector>

namespace sgactor::apps {
namespace {

constexpr int64_t kLocalConnectNs = 3'000'000'000;
constexpr int64_t kBeatNs = 100'000'000;
constexpr std::chrono::milliseconds kLookAgain{5};

/// Errors: kInvalidArgument: no network device has this numeric address.
Status check_own_address(const std::string& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return internal_error("getifaddrs failed");
  bool found = false;
  for (const ifaddrs* i = list; i != nullptr && !found; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const auto family = i->ifa_addr->sa_family;
    const void* raw = nullptr;
    if (family == AF_INET) raw = &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    if (family == AF_INET6) raw = &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (raw == nullptr || ::inet_ntop(family, raw, text.data(), text.size()) == nullptr) continue;
    found = address == text.data();
  }
  ::freeifaddrs(list);
  if (found) return {};
  return invalid_argument("--bind " + address + ": no network device of this host has it");
}

class Plane final : public DataPlane {
 public:
  Status init(actors::wire::PeerId self, const std::string& secret, const DataPlaneOptions& plane) {
    const std::string& bind = plane.bind;
    transport::FabricOptions options;
    options.messages.check_frames = plane.check_frames;
    options.beat_ns = kBeatNs;
    options.faults.live = plane.faults;
    if (secret.size() != options.secret.size()) {
      return corruption("the secret of the data plane has another size");
    }
    std::memcpy(options.secret.data(), secret.data(), secret.size());
    options.keyed_hash = &hmac_;
    // A peer that dies at this moment must not hold the others long.
    if (bind.empty()) options.connect_timeout_ns = kLocalConnectNs;
    if (plane.alone) {
      SGA_ASSIGN(fabric_, transport::InprocFabric::create(
                              std::make_shared<transport::InprocNetwork>(), self, options));
    } else {
      transport::ProcessFabricOptions between;
      between.fabric = options;
      // Shared memory is all that workers of one host need; a port is opened for others only.
      if (!bind.empty()) {
        SGA_TRY(check_own_address(bind));
        between.tcp = bind.find(':') == std::string::npos ? bind + ":0" : "[" + bind + "]:0";
      }
      SGA_ASSIGN(fabric_, transport::ProcessFabric::create(self, between));
    }
    collectives_ = std::make_unique<transport::Collectives>(*fabric_);
    return {};
  }
  std::string address() const override { return fabric_->address(); }
  transport::Collectives& collectives() override { return *collectives_; }

  Status connect(const actors::wire::Routes& routes,
                 const std::function<bool()>& give_up) override {
    std::vector<std::pair<actors::wire::PeerId, std::future<Status>>> waiting;
    std::set<actors::wire::PeerId> others;
    for (const actors::wire::Route& route : routes.routes) {
      if (route.peer != fabric_->self()) others.insert(route.peer);
    }
    for (const actors::wire::PeerId peer : others_) {
      if (others.contains(peer)) continue;
      collectives_->abort_peer(peer, make_status(Code::kDisconnected, "replaced"));
    }
    others_ = std::move(others);
    for (const actors::wire::Route& route : routes.routes) {
      if (route.peer == fabric_->self()) continue;
      auto promise = std::make_shared<std::promise<Status>>();
      waiting.emplace_back(route.peer, promise->get_future());
      fabric_->connect(route.peer, route.address,
                       [promise](const Status& status) { promise->set_value(status); });
    }
    for (auto& [peer, future] : waiting) {
      while (future.wait_for(kLookAgain) != std::future_status::ready) {
        if (give_up && give_up()) return make_status(Code::kCancelled, "given up");
      }
      SGA_TRY(future.get().with_context(fmt::format("data plane, peer {}", peer)));
    }
    transport::RouteTable table;
    table.generation = static_cast<transport::Generation>(routes.generation);
    for (const actors::wire::Route& route : routes.routes) {
      for (const int32_t rank : route.ranks) table.peer_of_rank[rank] = route.peer;
    }
    collectives_->set_routes(std::move(table));
    return {};
  }
  void abort(const Status& why) override {
    collectives_->abort(std::numeric_limits<transport::Generation>::max(), why);
  }

 private:
  FabricHash hmac_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Collectives> collectives_;
  std::set<actors::wire::PeerId> others_;  // of the last routes
};

}  // namespace

std::string local_address_towards(const std::string& host_port) {
  const auto place = actors::parse_host_port(host_port);
  if (!place.ok()) return {};
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(place->port);
  if (::getaddrinfo(place->host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  std::array<char, NI_MAXHOST> text{};
  // Connecting a datagram socket sends nothing; it asks the kernel for the route.
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  auto* const own_address = reinterpret_cast<sockaddr*>(&own);
  const bool known =
      fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(fd, own_address, &size) == 0 &&
      ::getnameinfo(own_address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  const std::string address = known ? text.data() : "";
  return address.starts_with("127.") || address == "::1" ? "" : address;
}

transport::FrameCheck frame_check_of(const std::string& name) {
  if (name == "off") return transport::FrameCheck::kOff;
  return name == "on" ? transport::FrameCheck::kAll : transport::FrameCheck::kWires;
}

Result<std::unique_ptr<DataPlane>> DataPlane::create(actors::wire::PeerId self,
                                                     const std::string& secret,
                                                     const DataPlaneOptions& options) {
  auto out = std::make_unique<Plane>();
  SGA_TRY(out->init(self, secret, options));
  return std::unique_ptr<DataPlane>(std::move(out));
}

}  // namespace sgactor::apps
