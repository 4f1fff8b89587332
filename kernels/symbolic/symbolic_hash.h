#pragma once
#include "graph/base/shape.h"
#include "graph/ir/graph.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::kernels::symbolic {

/// Hash of what an op is, without its operands' values: kind, attributes, operand and result types.
/// Phase and segment are left out: the same computation elsewhere is the same value.
uint64_t op_hash(const graph::Graph& graph, const graph::Op& op);

/// Hash of result `result` from the op's hash and the operands' in order.
uint64_t result_hash(uint64_t op, std::span<const uint64_t> operands, uint32_t result);

/// Hash of a tensor given as native bytes, and bytes that stand for a hash. They are inverse where
/// bytes can carry a hash: tensor_hash(tensor_bytes(h)) == h for tensors of 8 bytes or more, so
/// that a checkpoint of hashes restores them. Tensors of fewer bytes read as floats in [1, 2) (the
/// low bits of the hash), so that a loss is a number; integers as its low bits. All-zero bytes have
/// the hash 0 and the other way round, as fill_zero does.
uint64_t tensor_hash(std::span<const std::byte> native);
void tensor_bytes(uint64_t hash, const TensorType& type, std::span<std::byte> native);

}  // namespace sgactor::kernels::symbolic
