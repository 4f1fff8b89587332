#include "graph/ir/serial.h"

#include "graph/ir/graph.capnp.h"
#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <cstring>
#include <map>

namespace sgactor::graph {
namespace {

constexpr uint32_t kVersion = 1;
// Attributes are inserted in a sorted vector: a bound keeps hostile bytes from quadratic time.
constexpr unsigned kMaxAttrs = 64;

kj::StringPtr kj_text(const std::string& text) { return {text.c_str(), text.size()}; }

/// Indices of the strings that repeat, in order of first use.
class StringTable {
 public:
  uint32_t index(std::string_view text) {
    const auto [found, added] = indices_.emplace(text, static_cast<uint32_t>(texts_.size()));
    if (added) texts_.push_back(&found->first);
    return found->second;
  }
  [[nodiscard]] const std::vector<const std::string*>& texts() const { return texts_; }

 private:
  std::map<std::string, uint32_t> indices_;
  std::vector<const std::string*> texts_;
};

void write_type(wire::TensorType::Builder out, const TensorType& type) {
  out.setDtype(static_cast<uint8_t>(type.dtype));
  const std::vector<int64_t>& dims = type.shape.dims();
  out.setDims(kj::arrayPtr(dims.data(), dims.size()));
}

template <class P>
void write_port(wire::Port::Builder out, const P& port) {
  out.setValue(port.value);
  out.setRole(static_cast<uint8_t>(port.role));
  out.setName(kj_text(port.name));
}

struct AttrWriter {
  wire::Attr::Builder out;
  StringTable& strings;
  void operator()(int64_t value) { out.setInt(value); }
  void operator()(double value) { out.setFloat(value); }
  void operator()(bool value) { out.setFlag(value); }
  void operator()(const std::string& value) { out.setText(strings.index(value)); }
  void operator()(const std::vector<int64_t>& value) {
    out.setList(kj::arrayPtr(value.data(), value.size()));
  }
  void operator()(DType value) { out.setDtype(static_cast<uint8_t>(value)); }
};

void write_op(wire::Op::Builder out, const Graph& graph, const Op& op, StringTable& strings) {
  out.setKind(strings.index(op_info(op.kind).name));
  out.setOperands(kj::arrayPtr(op.operands.data(), op.operands.size()));
  auto types = out.initResultTypes(static_cast<unsigned>(op.results.size()));
  for (unsigned i = 0; i < types.size(); ++i) write_type(types[i], graph.type(op.results[i]));
  const auto& entries = op.attrs.entries();
  auto attrs = out.initAttrs(static_cast<unsigned>(entries.size()));
  for (unsigned i = 0; i < attrs.size(); ++i) {
    attrs[i].setName(strings.index(entries[i].first));
    std::visit(AttrWriter{attrs[i], strings}, entries[i].second);
  }
  out.setPhase(static_cast<uint8_t>(op.phase));
  out.setSegment(op.segment);
}

template <class T>
std::vector<T> to_vector(typename capnp::List<T>::Reader list) {
  std::vector<T> items;
  items.reserve(list.size());
  for (T item : list) items.push_back(item);
  return items;
}

std::string to_string(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

Result<TensorType> read_type(wire::TensorType::Reader in) {
  if (in.getDtype() >= kNumDTypes) return corruption("unknown dtype");
  const auto dims = in.getDims();
  if (dims.size() > static_cast<unsigned>(kMaxRank)) return corruption("rank is too large");
  TensorType type{static_cast<DType>(in.getDtype()), Shape(to_vector<int64_t>(dims))};
  SGA_TRY(check_type(type));
  return type;
}

class Reader {
 public:
  explicit Reader(wire::Graph::Reader in) : in_(in), inputs_(in.getInputs()) {}

  Result<Graph> run() {
    if (in_.getVersion() != kVersion) {
      return corruption(
          fmt::format("graph of version {}, expected {}", in_.getVersion(), kVersion));
    }
    graph_.name = to_string(in_.getName());
    for (auto text : in_.getStrings()) strings_.push_back(to_string(text));
    SGA_TRY(read_segments());
    SGA_TRY(read_due_inputs());
    for (auto op : in_.getOps()) {
      SGA_TRY(read_op(op));
      SGA_TRY(read_due_inputs());
    }
    if (next_input_ != inputs_.size()) return corruption("an input is out of order");
    for (auto port : in_.getOutputs()) {
      if (port.getRole() >= kNumRoles) return corruption("unknown role");
      graph_.add_output(port.getValue(), static_cast<Role>(port.getRole()),
                        to_string(port.getName()));
    }
    SGA_TRY(verify(graph_));
    return std::move(graph_);
  }

 private:
  Status read_segments() {
    for (auto segment : in_.getSegments()) {
      const std::string name = to_string(segment);
      // segment_index is a linear search: far more segments than layers are not honest.
      if (graph_.segments().size() >= kMaxSegments) return corruption("too many segments");
      const size_t index = graph_.segments().size();
      if (static_cast<size_t>(graph_.segment_index(name)) != index) {
        return corruption("a segment is listed twice");
      }
    }
    return {};
  }

  Status read_due_inputs() {
    while (next_input_ < inputs_.size()) {
      auto input = inputs_[next_input_];
      auto port = input.getPort();
      if (port.getValue() != graph_.values().size()) return {};
      if (port.getRole() >= kNumRoles) return corruption("unknown role");
      SGA_ASSIGN(TensorType type, read_type(input.getType()));
      graph_.add_input(std::move(type), static_cast<Role>(port.getRole()),
                       to_string(port.getName()));
      ++next_input_;
    }
    return {};
  }

  Result<std::string_view> text(uint32_t index) const {
    if (index >= strings_.size()) return corruption("no such string");
    return std::string_view(strings_[index]);
  }

  Result<Attr> read_attr(wire::Attr::Reader in) const {
    switch (in.which()) {
      case wire::Attr::INT:
        return Attr(in.getInt());
      case wire::Attr::FLOAT:
        return Attr(in.getFloat());
      case wire::Attr::FLAG:
        return Attr(in.getFlag());
      case wire::Attr::TEXT: {
        SGA_ASSIGN(const std::string_view value, text(in.getText()));
        return Attr(std::string(value));
      }
      case wire::Attr::LIST:
        return Attr(to_vector<int64_t>(in.getList()));
      case wire::Attr::DTYPE:
        if (in.getDtype() >= kNumDTypes) return corruption("unknown dtype");
        return Attr(static_cast<DType>(in.getDtype()));
    }
    return corruption("unknown kind of attribute");
  }

  Status read_op(wire::Op::Reader in) {
    SGA_ASSIGN(const std::string_view kind_name, text(in.getKind()));
    const auto kind = parse_op_kind(kind_name);
    if (!kind) return corruption("unknown op");
    if (in.getPhase() >= kNumPhases) return corruption("unknown phase");
    const auto operand_list = in.getOperands();
    const auto type_list = in.getResultTypes();
    const auto attr_list = in.getAttrs();
    if (attr_list.size() > kMaxAttrs) return corruption("too many attributes");
    std::vector<TensorType> types;
    types.reserve(type_list.size());
    for (auto type : type_list) {
      SGA_ASSIGN(TensorType read, read_type(type));
      types.push_back(std::move(read));
    }
    Attrs attrs;
    for (auto attr : attr_list) {
      SGA_ASSIGN(const std::string_view attr_name, text(attr.getName()));
      SGA_ASSIGN(Attr value, read_attr(attr));
      attrs.set(attr_name, std::move(value));
    }
    graph_.add_op(*kind, to_vector<ValueId>(operand_list), std::move(attrs), types,
                  static_cast<Phase>(in.getPhase()), in.getSegment());
    return {};
  }

  static constexpr size_t kMaxSegments = 65536;
  wire::Graph::Reader in_;
  capnp::List<wire::Input>::Reader inputs_;
  unsigned next_input_ = 0;
  std::vector<std::string> strings_;
  Graph graph_;
};

Result<Graph> read_graph(std::string_view bytes) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return corruption("not a whole number of words");
  }
  // The bytes of a string are not aligned to words.
  kj::Array<capnp::word> words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::ReaderOptions options;
  // Each object is read a small number of times; pointers that share an object read it more often.
  options.traversalLimitInWords = 4 * words.size() + 1024;
  options.nestingLimit = 16;
  capnp::FlatArrayMessageReader message(words, options);
  return Reader(message.getRoot<wire::Graph>()).run();
}

}  // namespace

std::string serialize_graph(const Graph& graph) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::Graph>();
  StringTable strings;
  out.setVersion(kVersion);
  out.setName(kj_text(graph.name));
  auto segments = out.initSegments(static_cast<unsigned>(graph.segments().size()));
  for (unsigned i = 0; i < segments.size(); ++i) segments.set(i, kj_text(graph.segments()[i]));
  auto inputs = out.initInputs(static_cast<unsigned>(graph.inputs().size()));
  for (unsigned i = 0; i < inputs.size(); ++i) {
    write_port(inputs[i].initPort(), graph.inputs()[i]);
    write_type(inputs[i].initType(), graph.type(graph.inputs()[i].value));
  }
  auto ops = out.initOps(static_cast<unsigned>(graph.ops().size()));
  for (unsigned i = 0; i < ops.size(); ++i) write_op(ops[i], graph, graph.op(i), strings);
  auto outputs = out.initOutputs(static_cast<unsigned>(graph.outputs().size()));
  for (unsigned i = 0; i < outputs.size(); ++i) write_port(outputs[i], graph.outputs()[i]);
  auto texts = out.initStrings(static_cast<unsigned>(strings.texts().size()));
  for (unsigned i = 0; i < texts.size(); ++i) texts.set(i, kj_text(*strings.texts()[i]));
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

Result<Graph> deserialize_graph(std::string_view bytes) {
  // kj's exceptions are no std::exception by type, so both are caught; std::bad_alloc and
  // std::length_error come from counts that the message claims.
  try {
    Result<Graph> graph = read_graph(bytes);
    if (graph.ok() || graph.status().code() == Code::kCorruption) return graph;
    return corruption("graph: " + graph.status().message());
  } catch (const kj::Exception& e) {
    return corruption(fmt::format("graph: {}", e.getDescription().cStr()));
  } catch (const std::exception& e) {
    return corruption(fmt::format("graph: {}", e.what()));
  }
}

}  // namespace sgactor::graph
