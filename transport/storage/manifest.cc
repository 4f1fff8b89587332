#include "transport/storage/manifest.h"

#include "graph/base/units.h"
#include "transport/storage/manifest.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>

namespace sgactor::transport {
namespace {

kj::ArrayPtr<const kj::byte> as_data(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

kj::StringPtr as_text(const std::string& text) { return {text.c_str(), text.size()}; }

std::string to_string(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

std::string to_string(capnp::Data::Reader data) {
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

void write_chunks(const std::vector<Hash128>& from, capnp::List<schema::Hash>::Builder to) {
  for (uint32_t i = 0; i < to.size(); ++i) {
    to[i].setLow(from[i].low);
    to[i].setHigh(from[i].high);
  }
}

void write_tensor(const TensorRecord& tensor, schema::Tensor::Builder out) {
  out.setName(as_text(tensor.name));
  out.setDtype(as_text(std::string(dtype_name(tensor.type.dtype))));
  auto dims = out.initDims(static_cast<uint32_t>(tensor.type.shape.rank()));
  for (int i = 0; i < tensor.type.shape.rank(); ++i)
    dims.set(static_cast<uint32_t>(i), tensor.type.shape.dim(i));
  out.setSegment(as_text(tensor.segment));
  write_chunks(tensor.chunks, out.initChunks(static_cast<uint32_t>(tensor.chunks.size())));
  // Left out where there are none, so that whole tensors are written as ever.
  if (tensor.pieces.empty()) return;
  auto pieces = out.initPieces(static_cast<uint32_t>(tensor.pieces.size()));
  for (uint32_t i = 0; i < pieces.size(); ++i) {
    const PieceRecord& piece = tensor.pieces[i];
    pieces[i].setDim(piece.slice.dim);
    pieces[i].setBegin(piece.slice.begin);
    pieces[i].setExtent(piece.slice.extent);
    pieces[i].setFirst(piece.slice.first);
    pieces[i].setCount(piece.slice.count);
    write_chunks(piece.chunks, pieces[i].initChunks(static_cast<uint32_t>(piece.chunks.size())));
  }
}

/// Bytes of a tensor of these dims; nothing if one is negative or the product overflows.
std::optional<int64_t> checked_bytes(DType dtype, const std::vector<int64_t>& dims) {
  int64_t bytes = dtype_bytes(dtype);
  // A zero among the dims must not hide an overflow of the others: Shape multiplies in order.
  for (const int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes))
      return std::nullopt;
  return std::find(dims.begin(), dims.end(), 0) == dims.end() ? bytes : 0;
}

/// One chunk for every chunk_bytes of `bytes`. `name` names the tensor too.
Result<std::vector<Hash128>> read_chunks(capnp::List<schema::Hash>::Reader in, int64_t bytes,
                                         int64_t chunk_bytes, const std::string& name) {
  const int64_t expected = bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
  if (int64_t{in.size()} != expected)
    return corruption(fmt::format("{}: {} chunks, {} expected", name, in.size(), expected));
  std::vector<Hash128> chunks;
  chunks.reserve(in.size());
  for (const auto chunk : in) chunks.push_back({chunk.getLow(), chunk.getHigh()});
  return chunks;
}

/// `name` names the tensor too.
Result<PieceRecord> read_piece(schema::Piece::Reader in, const TensorType& type,
                               int64_t chunk_bytes, const std::string& name) {
  PieceRecord piece;
  piece.slice = {in.getDim(), in.getBegin(), in.getExtent(), in.getFirst(), in.getCount()};
  if (Status s = check_slice(type.shape, piece.slice); !s.ok())
    return corruption(fmt::format("{}: {}", name, s.message()));
  if (piece.slice.first + piece.slice.count > range_elements(type.shape, piece.slice))
    return corruption(name + ": a piece that goes beyond its end");
  SGA_ASSIGN(piece.chunks, read_chunks(in.getChunks(), piece.slice.count * dtype_bytes(type.dtype),
                                       chunk_bytes, name));
  return piece;
}

Result<TensorRecord> read_tensor(schema::Tensor::Reader in, int64_t chunk_bytes,
                                 const std::string& name) {
  TensorRecord tensor;
  tensor.name = to_string(in.getName());
  tensor.segment = to_string(in.getSegment());
  const std::string dtype_text = to_string(in.getDtype());
  const std::optional<DType> dtype = parse_dtype(dtype_text);
  if (!dtype)
    return corruption(
        fmt::format("{}: tensor {}: unknown dtype '{}'", name, tensor.name, dtype_text));
  std::vector<int64_t> dims;
  for (const int64_t dim : in.getDims()) dims.push_back(dim);
  const std::optional<int64_t> bytes = checked_bytes(*dtype, dims);
  if (!bytes) return corruption(fmt::format("{}: tensor {}: impossible shape", name, tensor.name));
  tensor.type = {*dtype, Shape(std::move(dims))};
  const std::string where = fmt::format("{}: tensor {}", name, tensor.name);
  const auto pieces = in.getPieces();
  SGA_ASSIGN(tensor.chunks,
             read_chunks(in.getChunks(), pieces.size() > 0 ? 0 : *bytes, chunk_bytes, where));
  for (const auto piece : pieces) {
    SGA_ASSIGN(PieceRecord record, read_piece(piece, tensor.type, chunk_bytes, where));
    tensor.pieces.push_back(std::move(record));
  }
  return tensor;
}

Result<CheckpointInfo> read_manifest(schema::Manifest::Reader in, const std::string& name,
                                     bool part) {
  CheckpointInfo info;
  info.step = in.getStep();
  info.schema_hash = in.getSchemaHash();
  info.runtime_version = in.getRuntimeVersion();
  info.mesh = to_string(in.getMesh());
  info.run_state = to_string(in.getRunState());
  info.data_seed = in.getDataSeed();
  info.data_position = in.getDataPosition();
  info.model_config = to_string(in.getModelConfig());
  info.job = to_string(in.getJob());
  info.graph = to_string(in.getGraph());
  info.chunk_bytes = in.getChunkBytes();
  if (info.step < 0) return corruption(fmt::format("{}: step {}", name, info.step));
  if (info.chunk_bytes <= 0)
    return corruption(fmt::format("{}: chunks of {} bytes", name, info.chunk_bytes));
  std::unordered_set<std::string> names;
  for (const auto tensor : in.getTensors()) {
    SGA_ASSIGN(TensorRecord record, read_tensor(tensor, info.chunk_bytes, name));
    if (!names.insert(record.name).second)
      return corruption(fmt::format("{}: tensor {}: is there twice", name, record.name));
    if (!part) SGA_TRY(check_pieces(record).with_context(name));
    info.tensors.push_back(std::move(record));
  }
  return info;
}

}  // namespace

std::string serialize_manifest(const CheckpointInfo& info) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schema::Manifest>();
  out.setStep(info.step);
  out.setSchemaHash(info.schema_hash);
  out.setRuntimeVersion(info.runtime_version);
  out.setMesh(as_text(info.mesh));
  out.setRunState(as_text(info.run_state));
  out.setDataSeed(info.data_seed);
  out.setDataPosition(info.data_position);
  out.setModelConfig(as_data(info.model_config));
  out.setJob(as_data(info.job));
  out.setGraph(as_data(info.graph));
  out.setChunkBytes(info.chunk_bytes);
  auto tensors = out.initTensors(static_cast<uint32_t>(info.tensors.size()));
  for (uint32_t i = 0; i < tensors.size(); ++i) write_tensor(info.tensors[i], tensors[i]);
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

Status check_pieces(const TensorRecord& tensor) {
  if (tensor.pieces.empty()) return {};
  int64_t elements = 0;
  std::set<std::tuple<int32_t, int64_t, int64_t>> seen;
  for (const PieceRecord& piece : tensor.pieces) {
    elements += num_real_elements(tensor.type.shape, piece.slice);
    if (!seen.emplace(piece.slice.dim, piece.slice.begin, piece.slice.first).second)
      return corruption(fmt::format("tensor {}: a piece is there twice", tensor.name));
  }
  if (elements == tensor.type.num_elements()) return {};
  return corruption(fmt::format("tensor {}: {} of its {} elements are there", tensor.name, elements,
                                tensor.type.num_elements()));
}

Result<CheckpointInfo> parse_manifest(std::string_view bytes, const std::string& name, bool part) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0)
    return corruption(fmt::format("{}: {} bytes are no manifest", name, bytes.size()));
  try {
    // A copy, since a reader needs aligned words.
    kj::Array<capnp::word> words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
    std::memcpy(words.asBytes().begin(), bytes.data(), bytes.size());
    // Everything is read once. The limit stops lists that are made large out of nothing.
    capnp::ReaderOptions options;
    options.traversalLimitInWords = words.size() * 2 + 1024;
    options.nestingLimit = 8;
    capnp::FlatArrayMessageReader message(words, options);
    return read_manifest(message.getRoot<schema::Manifest>(), name, part);
  } catch (const kj::Exception& e) {
    return corruption(fmt::format("{}: {}", name, e.getDescription().cStr()));
  } catch (const std::exception& e) {
    return corruption(fmt::format("{}: {}", name, e.what()));
  }
}

std::string commit_text(std::string_view manifest) {
  return fmt::format("sgactor checkpoint 1 {} {}\n",
                     hash128(std::as_bytes(std::span(manifest))).hex(), manifest.size());
}

int64_t chunk_size(int64_t tensor_bytes, int64_t chunk_bytes, int64_t index) {
  return std::min(chunk_bytes, tensor_bytes - index * chunk_bytes);
}

}  // namespace sgactor::transport
