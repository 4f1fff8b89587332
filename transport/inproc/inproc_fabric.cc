#include "transport/inproc/inproc_fabric.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>
#include <vector>

namespace sgactor::transport {
namespace {

constexpr size_t kMaxPayload = size_t{256} << 10;
constexpr int64_t kMaxInFlightBytes = int64_t{4} << 20;

class InprocLink;

// One end of a link, reachable from the other end's thread through its progress only.
struct End {
  std::shared_ptr<Progress> progress;
  InprocLink* link = nullptr;               // of `progress`
  std::atomic<int64_t> in_flight_bytes{0};  // towards this end
  std::atomic<bool> sender_refused{false};
};

class InprocLink final : public Link {
 public:
  InprocLink(std::shared_ptr<End> mine, std::shared_ptr<End> other)
      : mine_(std::move(mine)), other_(std::move(other)) {}
  ~InprocLink() override { close(); }

  [[nodiscard]] bool in_memory() const override { return true; }
  [[nodiscard]] size_t max_payload() const override { return kMaxPayload; }

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override {
    if (closed_) return true;
    if (other_->in_flight_bytes.load() > kMaxInFlightBytes) {
      other_->sender_refused.store(true);
      // The receiver may have taken everything between the two lines and seen no refusal.
      if (other_->in_flight_bytes.load() > kMaxInFlightBytes ||
          !other_->sender_refused.exchange(false)) {
        return false;
      }
    }
    other_->in_flight_bytes.fetch_add(static_cast<int64_t>(payload.size()));
    other_->progress->post([to = other_, from = mine_, header,
                            bytes = std::vector<std::byte>(payload.begin(), payload.end())] {
      const auto size = static_cast<int64_t>(bytes.size());
      to->in_flight_bytes.fetch_sub(size);
      if (to->link != nullptr) to->link->handler_->on_frame(*to->link, header, bytes);
      if (to->in_flight_bytes.load() <= kMaxInFlightBytes && to->sender_refused.exchange(false)) {
        from->progress->post([from] {
          if (from->link != nullptr) from->link->handler_->on_writable(*from->link);
        });
      }
    });
    return true;
  }

  void close() override {
    if (std::exchange(closed_, true)) return;
    mine_->link = nullptr;
    tell_closed(other_);
  }

  static void tell_closed(const std::shared_ptr<End>& end) {
    end->progress->post([end] {
      if (InprocLink* link = std::exchange(end->link, nullptr)) {
        link->closed_ = true;
        link->handler_->on_closed(*link, make_status(Code::kDisconnected, "the peer has closed"));
      }
    });
  }

 private:
  std::shared_ptr<End> mine_;
  std::shared_ptr<End> other_;
  bool closed_ = false;
};

}  // namespace

Result<std::unique_ptr<InprocFabric>> InprocFabric::create(std::shared_ptr<InprocNetwork> network,
                                                           PeerId self, FabricOptions options,
                                                           std::shared_ptr<Progress> progress) {
  std::shared_ptr<EventLoop> own_loop;
  if (!progress) {
    SGA_ASSIGN(own_loop, EventLoop::create({}));
    progress = own_loop;
  }
  std::unique_ptr<InprocFabric> fabric(
      new InprocFabric(network, self, std::move(options), progress, own_loop));
  {
    const std::lock_guard lock(network->mutex_);
    const bool is_new =
        network->fabrics_
            .try_emplace(self, InprocNetwork::Entry{progress, fabric.get(),
                                                    std::weak_ptr<bool>(fabric->reachable_)})
            .second;
    if (!is_new) {
      fabric->network_ = nullptr;  // its destructor must not take the other one's entry away
      return invalid_argument(fmt::format("peer {} is in the network already", self));
    }
  }
  if (own_loop) own_loop->start();
  return fabric;
}

InprocFabric::InprocFabric(std::shared_ptr<InprocNetwork> network, PeerId self,
                           FabricOptions options, std::shared_ptr<Progress> progress,
                           std::shared_ptr<EventLoop> own_loop)
    : MessageFabric(self, progress.get(), options),
      network_(std::move(network)),
      shared_progress_(std::move(progress)),
      own_loop_(std::move(own_loop)),
      proves_(options.keyed_hash != nullptr) {}

InprocFabric::~InprocFabric() {
  if (network_) {
    const std::lock_guard lock(network_->mutex_);
    network_->fabrics_.erase(self());
  }
  if (own_loop_) own_loop_->stop();
  reachable_.reset();
  shut_down();
}

void InprocFabric::open_link(PeerId peer, const std::string& /*address*/) {
  InprocNetwork::Entry other;
  {
    const std::lock_guard lock(network_->mutex_);
    const auto it = network_->fabrics_.find(peer);
    if (it != network_->fabrics_.end()) other = it->second;
  }
  if (other.fabric == nullptr) {
    open_failed(peer, make_status(Code::kDisconnected, fmt::format("peer {} is not here", peer)),
                false);
    return;
  }
  auto near = std::make_shared<End>();
  near->progress = shared_progress_;
  auto far = std::make_shared<End>();
  far->progress = other.progress;
  auto near_link = std::make_unique<InprocLink>(near, far);
  near->link = near_link.get();
  // Runs when the task has run or was dropped: a fabric that dies before it accepts must be seen.
  std::shared_ptr<void> dropped(nullptr, [near, far](void*) {
    if (far->link == nullptr) InprocLink::tell_closed(near);
  });
  other.progress->post([other, near, far, from = self(), dropped = std::move(dropped)] {
    const auto alive = other.alive.lock();
    if (!alive) return;
    auto far_link = std::make_unique<InprocLink>(far, near);
    far->link = far_link.get();
    other.fabric->accept(from, std::move(far_link));
  });
  if (proves_) {
    link_opened(std::move(near_link), peer);
  } else {
    link_trusted(peer, std::move(near_link));
  }
}

void InprocFabric::accept(PeerId from, std::unique_ptr<Link> link) {
  if (proves_) {
    link_opened(std::move(link), std::nullopt);
  } else {
    link_trusted(from, std::move(link));
  }
}

}  // namespace sgactor::transport
