#include "transport/ucx/ucx_worker.h"

#include "graph/base/hash.h"
#include "graph/base/log.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <ucp/api/ucp.h>

#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sgactor::transport {
namespace {

constexpr unsigned kAmId = 1;
constexpr size_t kMaxPayload = size_t{48} << 10;
constexpr size_t kMaxAddress = 4096;
constexpr size_t kMaxAccepted = 256;  // links that peers may open and that have not ended

enum class Message : uint32_t { kOpen = 1, kFrame };

// Leads every active message. A link is named at both ends by the pair (opener, number).
struct AmHeader {
  Message message = Message::kFrame;
  uint32_t payload_bytes = 0;
  uint64_t opener = 0;  // random number of the worker that opened the link
  uint64_t number = 0;  // counts its links
  FrameHeader frame;
};

struct LinkName {
  uint64_t opener;
  uint64_t number;
  friend bool operator==(const LinkName&, const LinkName&) = default;
};
struct LinkNameHash {
  size_t operator()(const LinkName& n) const { return mix64(n.opener, n.number); }
};

Status ucx_error(const char* what, ucs_status_t status) {
  return make_status(Code::kDisconnected, fmt::format("{}: {}", what, ucs_status_string(status)));
}

}  // namespace

class UcxLink;

struct UcxWorker::Rep {
  UcxOptions options;
  EventLoop* loop = nullptr;
  Accept accept;
  uint64_t self = 0;
  uint64_t num_opened = 0;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  int event_fd = -1;
  std::unordered_map<LinkName, UcxLink*, LinkNameHash> links;
  size_t num_accepted = 0;
  bool inside_ucx = false;
  bool attention = false;          // some link has something to settle
  std::vector<ucp_ep_h> to_close;  // closed outside UCX's callbacks
  std::vector<void*> closing;      // requests of endpoints under way to their end
  // What came for links that are not there (yet); handled outside UCX's callbacks.
  struct Early {
    AmHeader header;
    std::vector<std::byte> payload;
  };
  std::vector<Early> early;

  static ucs_status_t on_message(void* rep, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* param);
  Status start();
  unsigned progress();
  void handle_early();
  void accept_link(const AmHeader& header, std::span<const std::byte> address);
  void close_endpoints();
};

class UcxLink final : public Link {
 public:
  UcxLink(UcxWorker::Rep& worker, LinkName name, bool accepted)
      : worker_(worker), name_(name), accepted_(accepted) {
    worker_.links.emplace(name_, this);
    if (accepted_) ++worker_.num_accepted;
  }
  ~UcxLink() override {
    close();
    worker_.close_endpoints();
    // Requests that UCX has not given back point into our slots; a forced close ends them.
    while (num_busy_ > 0) worker_.progress();
  }

  Status connect(std::string_view address);
  Status send_open(std::string_view own_address);
  [[nodiscard]] size_t max_payload() const override { return kMaxPayload; }
  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  void close() override;
  void take(const AmHeader& header, std::span<const std::byte> payload) {
    if (!closed_) handler_->on_frame(*this, header.frame, payload);
  }
  void lost(const Status& why) {
    if (!closed_ && !lost_) {
      lost_ = true;
      why_ = why;
      worker_.attention = true;
    }
  }
  // From the poll, outside UCX's callbacks.
  bool settle();

 private:
  static constexpr size_t kNumSlots = 8;
  struct Slot {
    UcxLink* link = nullptr;
    bool busy = false;
    AmHeader header;
    std::vector<std::byte> payload;
  };
  Slot* free_slot();
  bool send_slot(Slot& slot);
  static void on_sent(void* request, ucs_status_t status, void* user);

  UcxWorker::Rep& worker_;
  const LinkName name_;
  const bool accepted_;
  ucp_ep_h endpoint_ = nullptr;
  std::array<Slot, kNumSlots> slots_;
  size_t num_busy_ = 0;
  bool refused_ = false;
  bool closed_ = false;
  bool lost_ = false;
  Status why_;
};

Status UcxLink::connect(std::string_view address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* link, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxLink*>(link)->lost(ucx_error("the peer is gone", status));
  };
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker_.worker, &params, &endpoint_);
  if (status != UCS_OK) return ucx_error("ucp_ep_create", status);
  return {};
}

UcxLink::Slot* UcxLink::free_slot() {
  for (Slot& slot : slots_) {
    if (!slot.busy) return &slot;
  }
  return nullptr;
}

void UcxLink::on_sent(void* request, ucs_status_t status, void* user) {
  auto* slot = static_cast<Slot*>(user);
  UcxLink* link = slot->link;
  slot->busy = false;
  --link->num_busy_;
  link->worker_.attention |= link->refused_;
  ucp_request_free(request);
  if (status != UCS_OK && status != UCS_ERR_CANCELED) link->lost(ucx_error("send", status));
}

bool UcxLink::send_slot(Slot& slot) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &UcxLink::on_sent;
  params.user_data = &slot;
  slot.link = this;
  slot.busy = true;
  ++num_busy_;
  const void* request = ucp_am_send_nbx(endpoint_, kAmId, &slot.header, sizeof(AmHeader),
                                        slot.payload.data(), slot.header.payload_bytes, &params);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) return true;
  slot.busy = false;
  --num_busy_;
  if (request != nullptr) lost(ucx_error("send", UCS_PTR_STATUS(request)));
  return true;
}

Status UcxLink::send_open(std::string_view own_address) {
  Slot& slot = slots_[0];
  slot.header = {
      Message::kOpen, static_cast<uint32_t>(own_address.size()), name_.opener, name_.number, {}};
  slot.payload.resize(kMaxPayload);
  std::memcpy(slot.payload.data(), own_address.data(), own_address.size());
  send_slot(slot);
  return lost_ ? why_ : Status();
}

bool UcxLink::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (closed_ || lost_) return true;
  Slot* slot = free_slot();
  if (slot == nullptr) {
    refused_ = true;
    return false;
  }
  slot->header = {Message::kFrame, static_cast<uint32_t>(payload.size()), name_.opener,
                  name_.number, header};
  slot->payload.resize(kMaxPayload);
  if (!payload.empty()) std::memcpy(slot->payload.data(), payload.data(), payload.size());
  return send_slot(*slot);
}

bool UcxLink::settle() {
  if (closed_) return false;
  if (lost_) {
    const Status why = why_;
    close();
    handler_->on_closed(*this, why);
    return true;
  }
  if (refused_ && num_busy_ < kNumSlots) {
    refused_ = false;
    handler_->on_writable(*this);
    return true;
  }
  return false;
}

void UcxLink::close() {
  if (std::exchange(closed_, true)) return;
  worker_.links.erase(name_);
  if (accepted_) --worker_.num_accepted;
  if (endpoint_ == nullptr) return;
  worker_.to_close.push_back(std::exchange(endpoint_, nullptr));
  if (!worker_.inside_ucx) worker_.close_endpoints();
}

// The worker.

Status UcxWorker::Rep::start() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return unsupported(ucs_status_string(status));
  const std::array<std::pair<const char*, std::string>, 4> settings = {{
      {"TLS", options.transports},
      {"NET_DEVICES", options.devices},
      // A frame is one fragment, so that it is not put together in a third place.
      {"TX_SEG_SIZE", "64k"},
      {"RX_SEG_SIZE", "64k"},
  }};
  for (const auto& [key, value] : settings) {
    status = ucp_config_modify(config, key, value.c_str());
    if (status != UCS_OK) log::debug("ucx knows no setting {}", key);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return unsupported(fmt::format("ucx: {} on {}: {}", options.transports, options.devices,
                                   ucs_status_string(status)));
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Created by one thread, then used by the loop's alone.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context, &worker_params, &worker);
  if (status != UCS_OK) return unsupported(ucs_status_string(status));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kAmId;
  handler.cb = &Rep::on_message;
  handler.arg = this;
  status = ucp_worker_set_am_recv_handler(worker, &handler);
  if (status == UCS_OK) status = ucp_worker_get_efd(worker, &event_fd);
  return status == UCS_OK ? Status() : unsupported(ucs_status_string(status));
}

ucs_status_t UcxWorker::Rep::on_message(void* rep, const void* header, size_t header_bytes,
                                        void* data, size_t bytes,
                                        const ucp_am_recv_param_t* /*param*/) {
  auto* self = static_cast<Rep*>(rep);
  AmHeader am;
  if (header_bytes != sizeof(am)) return UCS_OK;
  std::memcpy(&am, header, sizeof(am));
  if (am.payload_bytes != bytes || bytes > kMaxPayload) return UCS_OK;
  const std::span payload(static_cast<const std::byte*>(data), bytes);
  const auto link = self->links.find({am.opener, am.number});
  if (am.message == Message::kFrame && link != self->links.end()) {
    if (am.frame.payload_bytes == bytes) link->second->take(am, payload);
    return UCS_OK;
  }
  if (self->early.size() < kMaxAccepted && bytes <= kMaxAddress) {
    self->early.push_back({am, {payload.begin(), payload.end()}});
  }
  return UCS_OK;
}

unsigned UcxWorker::Rep::progress() {
  const bool was_inside = std::exchange(inside_ucx, true);
  const unsigned n = ucp_worker_progress(worker);
  inside_ucx = was_inside;
  return n;
}

void UcxWorker::Rep::handle_early() {
  for (const Early& e : std::exchange(early, {})) {
    const auto link = links.find({e.header.opener, e.header.number});
    if (e.header.message == Message::kOpen) {
      if (link == links.end() && num_accepted < kMaxAccepted) accept_link(e.header, e.payload);
    } else if (link != links.end() && e.header.frame.payload_bytes == e.payload.size()) {
      link->second->take(e.header, e.payload);
    }
  }
}

void UcxWorker::Rep::accept_link(const AmHeader& header, std::span<const std::byte> address) {
  auto link = std::make_unique<UcxLink>(*this, LinkName{header.opener, header.number}, true);
  const std::string_view text(reinterpret_cast<const char*>(address.data()), address.size());
  if (link->connect(text).ok()) accept(std::move(link));
}

void UcxWorker::Rep::close_endpoints() {
  for (ucp_ep_h endpoint : std::exchange(to_close, {})) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucp_ep_close_nbx(endpoint, &params);
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing.push_back(request);
  }
  std::erase_if(closing, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const UcxOptions& options, uint64_t self,
                                                     EventLoop& loop, Accept accept) {
  auto rep = std::make_unique<Rep>();
  rep->options = options;
  rep->loop = &loop;
  rep->accept = std::move(accept);
  rep->self = self;
  Rep* raw = rep.get();
  std::unique_ptr<UcxWorker> worker(new UcxWorker(std::move(rep)));
  SGA_TRY(raw->start());
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(raw->worker, &address, &bytes);
  if (status != UCS_OK) return unsupported(ucs_status_string(status));
  worker->address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(raw->worker, address);
  if (bytes > kMaxAddress) return unsupported("a ucx address longer than any");
  SGA_TRY(loop.add_fd(raw->event_fd, EPOLLIN, [](uint32_t) {}));  // the poll reads it
  loop.add_poller(worker.get());
  return worker;
}

UcxWorker::UcxWorker(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

UcxWorker::~UcxWorker() {
  if (rep_->event_fd >= 0) rep_->loop->remove_fd(rep_->event_fd);
  rep_->loop->remove_poller(this);
  if (rep_->worker != nullptr) {
    rep_->close_endpoints();
    ucp_worker_destroy(rep_->worker);
  }
  if (rep_->context != nullptr) ucp_cleanup(rep_->context);
}

Result<std::unique_ptr<Link>> UcxWorker::open(std::string_view address) {
  auto link = std::make_unique<UcxLink>(*rep_, LinkName{rep_->self, rep_->num_opened++}, false);
  SGA_TRY(link->connect(address));
  SGA_TRY(link->send_open(address_));
  return std::unique_ptr<Link>(std::move(link));
}

std::string UcxWorker::description() const {
  return fmt::format("UCX {}, {}", ucp_get_version_string(), rep_->options.transports);
}

bool UcxWorker::poll() {
  constexpr int kTurns = 16;
  bool any = false;
  for (int i = 0; i < kTurns && rep_->progress() > 0; ++i) any = true;
  if (!rep_->early.empty()) {
    rep_->handle_early();
    any = true;
  }
  if (std::exchange(rep_->attention, false)) {
    std::vector<UcxLink*> links;
    for (const auto& [name, link] : rep_->links) links.push_back(link);
    for (UcxLink* link : links) any |= link->settle();
  }
  if (!rep_->to_close.empty() || !rep_->closing.empty()) rep_->close_endpoints();
  return any;
}

bool UcxWorker::arm() {
  if (!rep_->early.empty() || rep_->attention) return false;
  return ucp_worker_arm(rep_->worker) == UCS_OK;
}

}  // namespace sgactor::transport
