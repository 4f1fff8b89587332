// Every op of the table: calls that its shape rule takes, with the result types, and calls that it
// refuses, with a part of the message.
#include "graph/ir/op_table.h"
#include "graph/ir/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace sgactor::graph {
namespace {

struct Case {
  const char* op;
  std::vector<const char*> operands;
  const char* attrs;
  const char* types;  ///< result types of a good call; a part of the message of a bad one
};

/// A graph of this one op in text form.
std::string text_of(const Case& c, const std::string& types) {
  std::string inputs;
  std::string operands;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    inputs += fmt::format("input %x{} : {} activation \"{}\"\n", i, c.operands[i], i);
    operands += fmt::format("{}%x{}", i == 0 ? "" : ", ", i);
  }
  std::string results;
  const int fixed = op_info(*parse_op_kind(c.op)).num_results;
  const int num_results = fixed < 0 ? static_cast<int>(c.operands.size()) : fixed;
  for (int i = 0; i < num_results; ++i) results += fmt::format("{}%y{}", i == 0 ? "" : ", ", i);
  return fmt::format("graph @g {{ {} {} = {}({}) {{{}}} : {} }}", inputs, results, c.op, operands,
                     c.attrs, types);
}

constexpr const char* kRope =
    "theta = 10000.0, head_dim = 8, seq_len = 5, scaling = \"llama3\", factor = 8.0, "
    "low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position = 8192, dtype = f32";
constexpr const char* kOddRope =
    "theta = 10000.0, head_dim = 7, seq_len = 5, scaling = \"none\", factor = 8.0, "
    "low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position = 8192, dtype = f32";
constexpr const char* kYarnRope =
    "theta = 10000.0, head_dim = 8, seq_len = 5, scaling = \"yarn\", factor = 8.0, "
    "low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position = 8192, dtype = f32";
constexpr const char* kNanRope =
    "theta = nan, head_dim = 8, seq_len = 5, scaling = \"none\", factor = 8.0, "
    "low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position = 8192, dtype = f32";
constexpr const char* kIntRope =
    "theta = 10000.0, head_dim = 8, seq_len = 5, scaling = \"none\", factor = 8.0, "
    "low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position = 8192, dtype = i32";
constexpr const char* kAdam = "beta1 = 0.9, beta2 = 0.95, eps = 1e-08, weight_decay = 0.1";
constexpr const char* kNoTrans = "trans_a = false, trans_b = false";
constexpr const char* kFlash = "scale = 0.125, causal = true";

const std::vector<Case>& good_cases() {
  static const std::vector<Case> kCases = {
      {"add", {"f32[2, 3]", "f32[2, 3]"}, "", "f32[2, 3]"},
      {"sub", {"bf16[2, 3]", "bf16[3]"}, "", "bf16[2, 3]"},
      {"mul", {"f64[2, 3]", "f64[]"}, "", "f64[2, 3]"},
      {"div", {"f32[]", "f32[]"}, "", "f32[]"},
      {"minimum", {"f16[0, 3]", "f16[3]"}, "", "f16[0, 3]"},
      {"maximum", {"f32[1]", "f32[1]"}, "", "f32[1]"},
      {"pow", {"f64[4]", "f64[]"}, "", "f64[4]"},
      {"neg", {"f32[2]"}, "", "f32[2]"},
      {"exp", {"f32[2]"}, "", "f32[2]"},
      {"log", {"f32[2]"}, "", "f32[2]"},
      {"sqrt", {"f32[2]"}, "", "f32[2]"},
      {"rsqrt", {"f32[2]"}, "", "f32[2]"},
      {"square", {"f32[2]"}, "", "f32[2]"},
      {"cos", {"f32[2]"}, "", "f32[2]"},
      {"sin", {"f32[2]"}, "", "f32[2]"},
      {"sigmoid", {"f32[2]"}, "", "f32[2]"},
      {"silu", {"f8e4m3[2]"}, "", "f8e4m3[2]"},
      {"scale", {"f32[2]"}, "factor = 2.0", "f32[2]"},
      {"add_scalar", {"f32[2]"}, "value = -inf", "f32[2]"},
      {"cast", {"i32[2]"}, "dtype = f64", "f64[2]"},
      {"reshape", {"i32[2, 6]"}, "shape = [3, 1, 4]", "i32[3, 1, 4]"},
      {"reshape", {"f32[1, 1]"}, "shape = []", "f32[]"},
      {"transpose", {"u8[2, 3, 4]"}, "perm = [2, 0, 1]", "u8[4, 2, 3]"},
      {"transpose", {"f32[]"}, "perm = []", "f32[]"},
      {"slice", {"f32[2, 6]"}, "axis = 1, start = 2, size = 4", "f32[2, 4]"},
      {"slice", {"f32[2, 6]"}, "axis = 0, start = 2, size = 0", "f32[0, 6]"},
      {"pad", {"f32[2, 6]"}, "axis = 0, before = 1, after = 3", "f32[6, 6]"},
      {"concat", {"i64[2, 6]", "i64[2, 1]", "i64[2, 0]"}, "axis = 1", "i64[2, 7]"},
      {"broadcast", {"f32[3]"}, "shape = [2, 3, 4], axes = [0, 2]", "f32[2, 3, 4]"},
      {"broadcast", {"f32[]"}, "shape = [2], axes = [0]", "f32[2]"},
      {"constant", {}, "value = 1.0, shape = [2], dtype = i32", "i32[2]"},
      {"reduce_sum", {"f32[2, 3, 4]"}, "axes = [0, 2]", "f32[3]"},
      {"reduce_sum", {"f32[2, 3]"}, "axes = []", "f32[2, 3]"},
      {"reduce_max", {"bf16[2, 3]"}, "axes = [0, 1]", "bf16[]"},
      {"sum_squares", {"bf16[2, 5]"}, "chunk = 3", "f32[4]"},
      {"sum_squares", {"f64[2, 5]"}, "chunk = 9223372036854775807", "f64[1]"},
      {"sum_squares", {"f32[0]"}, "chunk = 3", "f32[0]"},
      {"tree_sum", {"f32[7]"}, "", "f32[]"},
      {"matmul", {"f32[2, 3]", "f32[3, 4]"}, kNoTrans, "f32[2, 4]"},
      {"matmul", {"f32[3, 2]", "f32[4, 3]"}, "trans_a = true, trans_b = true", "f32[2, 4]"},
      {"matmul",
       {"bf16[5, 6, 2, 3]", "bf16[5, 6, 4, 3]"},
       "trans_a = false, trans_b = true",
       "bf16[5, 6, 2, 4]"},
      {"softmax", {"f32[2, 3]"}, "", "f32[2, 3]"},
      {"softmax_grad", {"f32[2, 3]", "f32[2, 3]"}, "", "f32[2, 3]"},
      {"silu_grad", {"f32[]", "f32[]"}, "", "f32[]"},
      {"causal_mask", {"f32[2, 3, 5]"}, "fill = -inf", "f32[2, 3, 5]"},
      {"rms_norm", {"bf16[2, 3, 4]", "bf16[4]"}, "eps = 1e-05", "bf16[2, 3, 4], f32[2, 3]"},
      {"rms_norm", {"f64[4]", "f64[4]"}, "eps = 1e-05", "f64[4], f64[]"},
      {"rms_norm_grad",
       {"bf16[2, 4]", "bf16[2, 4]", "bf16[4]", "f32[2]"},
       "",
       "bf16[2, 4], bf16[4]"},
      {"rope_table", {}, kRope, "f32[5, 4], f32[5, 4]"},
      {"rotate",
       {"f32[2, 5, 3, 8]", "f32[5, 4]", "f32[5, 4]"},
       "inverse = true",
       "f32[2, 5, 3, 8]"},
      {"gather", {"bf16[100, 8]", "i32[2, 3]"}, "", "bf16[2, 3, 8]"},
      {"scatter_add", {"i32[2, 3]", "bf16[2, 3, 8]"}, "rows = 100", "bf16[100, 8]"},
      {"cross_entropy", {"bf16[6, 9]", "i32[6]"}, "", "f32[], f32[6]"},
      {"cross_entropy", {"f64[6, 9]", "i32[6]"}, "", "f64[], f64[6]"},
      {"cross_entropy_grad", {"bf16[6, 9]", "i32[6]", "f32[6]", "f32[]"}, "", "bf16[6, 9]"},
      {"accumulate", {"f32[2]", "bf16[2]"}, "", "f32[2]"},
      {"accumulate", {"f64[2]", "f64[2]"}, "", "f64[2]"},
      {"philox_uniform", {"i64[2]"}, "shape = [3], dtype = f32", "f32[3]"},
      {"matmul_accumulate",
       {"f32[2, 4]", "bf16[3, 2]", "bf16[3, 4]"},
       "trans_a = true, trans_b = false",
       "f32[2, 4]"},
      {"flash_attention",
       {"bf16[2, 5, 6, 8]", "bf16[2, 5, 3, 8]", "bf16[2, 5, 3, 8]"},
       kFlash,
       "bf16[2, 5, 6, 8], f32[2, 6, 5]"},
      {"flash_attention_grad",
       {"f32[2, 5, 6, 8]", "f32[2, 5, 6, 8]", "f32[2, 5, 3, 8]", "f32[2, 5, 3, 8]",
        "f32[2, 5, 6, 8]", "f32[2, 6, 5]"},
       kFlash,
       "f32[2, 5, 6, 8], f32[2, 5, 3, 8], f32[2, 5, 3, 8]"},
      {"swiglu", {"f32[2, 3]", "f32[2, 3]"}, "", "f32[2, 3]"},
      {"swiglu_grad", {"f32[2, 3]", "f32[2, 3]", "f32[2, 3]"}, "", "f32[2, 3], f32[2, 3]"},
      {"add_rms_norm",
       {"bf16[2, 4]", "bf16[2, 4]", "bf16[4]"},
       "eps = 1e-05",
       "bf16[2, 4], bf16[2, 4], f32[2]"},
      {"add_rms_norm_grad",
       {"f32[2, 4]", "f32[2, 4]", "f32[2, 4]", "f32[4]", "f32[2]"},
       "",
       "f32[2, 4], f32[4]"},
      {"adamw",
       {"f32[2]", "f32[2]", "f32[2]", "f32[2]", "f32[]", "f32[]", "f32[]", "f32[]"},
       kAdam,
       "f32[2], f32[2], f32[2]"},
      {"adamw",
       {"f64[2]", "f64[2]", "f64[2]", "f64[2]", "f32[]", "f64[]", "f32[]", "f32[]"},
       kAdam,
       "f64[2], f64[2], f64[2]"},
      {"all_reduce",
       {"f32[2, 3]", "f64[]"},
       "group = \"dp\", reduce = \"sum\"",
       "f32[2, 3], f64[]"},
      {"all_gather",
       {"f32[4]", "bf16[3]"},
       "group = \"dp\", members = 3, sizes = [10, 9]",
       "f32[10], bf16[9]"},
      {"reduce_scatter", {"f32[2, 5]"}, "group = \"dp\", members = 3, pieces = [4]", "f32[4]"},
      {"gather_shard", {"bf16[4, 8]", "i32[2, 3]", "i32[]"}, "rows = 7", "bf16[2, 3, 8]"},
      {"scatter_add_shard",
       {"i32[2, 3]", "f32[2, 3, 8]", "i32[]"},
       "rows = 7, shard_rows = 4",
       "f32[4, 8]"},
      {"cross_entropy_max", {"bf16[6, 4]", "i32[]"}, "vocab = 7", "f32[6]"},
      {"cross_entropy_shard",
       {"bf16[6, 4]", "i32[6]", "f32[6]", "i32[]"},
       "vocab = 7",
       "f32[6], f32[6]"},
      {"cross_entropy_combine", {"i32[6]", "f64[6]", "f64[6]", "f64[6]"}, "", "f64[], f64[6]"},
      {"cross_entropy_shard_grad",
       {"bf16[6, 4]", "i32[6]", "f32[6]", "f32[]", "i32[]"},
       "vocab = 7",
       "bf16[6, 4]"},
      {"slice_shard", {"i32[6, 5]", "i32[]"}, "axis = 1, members = 2", "i32[6, 3]"},
      {"quantize_f8",
       {"bf16[2, 3]", "f32[]"},
       "dtype = f8e4m3, transposed = true",
       "f8e4m3[3, 2], f32[]"},
      {"quantize_f8_observed",
       {"f32[2, 3, 4]", "f32[]", "f32[]"},
       "dtype = f8e5m2, transposed = false",
       "f8e5m2[2, 3, 4], f32[], f32[]"},
      {"quantize_f8_both",
       {"bf16[2, 3]", "f32[]", "f32[]"},
       "dtype = f8e5m2",
       "f8e5m2[2, 3], f32[], f32[], f8e5m2[3, 2]"},
      {"scaled_matmul",
       {"f8e4m3[2, 3]", "f8e5m2[3, 4]", "f32[]", "f32[]"},
       "trans_a = false, trans_b = false, dtype = bf16",
       "bf16[2, 4]"},
      {"scaled_matmul_accumulate",
       {"f32[2, 4]", "f8e5m2[3, 2]", "f8e4m3[4, 3]", "f32[]", "f32[]"},
       "trans_a = true, trans_b = true",
       "f32[2, 4]"},
      {"update_amax", {"f32[]", "f32[]"}, "", "f32[]"},
      {"linear_cross_entropy", {"bf16[6, 4]", "bf16[9, 4]", "i32[6]"}, "", "f32[], f32[6]"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "bf16[6, 4]", "bf16[9, 4]", "i32[6]", "f32[]"},
       "",
       "f32[9, 4], bf16[6, 4], f32[]"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f8e4m3[6, 4]", "f8e4m3[9, 4]", "i32[6]", "f32[]", "f32[]", "f32[]"},
       "",
       "f32[9, 4], bf16[6, 4], f32[]"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f8e4m3[6, 4]", "f8e4m3[9, 4]", "i32[6]", "f32[]", "f32[]", "f32[]",
        "f8e4m3[4, 6]", "f8e4m3[4, 9]"},
       "",
       "f32[9, 4], bf16[6, 4], f32[]"},
      {"fused_pointwise",
       {"f32[2, 3]", "f32[3]"},
       "program = \"add 0 1; scale 2 0.5\"",
       "f32[2, 3]"},
  };
  return kCases;
}

const std::vector<Case>& bad_cases() {
  static const std::vector<Case> kCases = {
      {"add", {"f32[2, 3]", "f32[2]"}, "", "suffix"},
      {"add", {"f32[3]", "f32[2, 3]"}, "", "suffix"},
      {"add", {"f32[3]", "f32[1]"}, "", "suffix"},
      {"add", {"f32[3]"}, "", "has 1 operands, expected 2"},
      {"sub", {"f32[3]", "f32[3]", "f32[3]"}, "", "has 3 operands, expected 2"},
      {"sub", {"f32[3]", "bf16[3]"}, "", "expected the type of operand 0"},
      {"mul", {"i32[3]", "i32[3]"}, "", "expected a float dtype"},
      {"div", {"u8[3]", "u8[3]"}, "", "expected a float dtype"},
      {"minimum", {"f32[2]", "f64[2]"}, "", "expected the type of operand 0"},
      {"maximum", {"i64[2]", "i64[2]"}, "", "expected a float dtype"},
      {"pow", {"f64[2]", "f32[]"}, "", "expected the type of operand 0"},
      {"neg", {"i32[2]"}, "", "expected a float dtype"},
      {"exp", {"i32[2]"}, "", "expected a float dtype"},
      {"log", {"i32[2]"}, "", "expected a float dtype"},
      {"sqrt", {"i32[2]"}, "", "expected a float dtype"},
      {"rsqrt", {"i32[2]"}, "", "expected a float dtype"},
      {"square", {"i32[2]"}, "", "expected a float dtype"},
      {"cos", {"i32[2]"}, "", "expected a float dtype"},
      {"sin", {"i32[2]"}, "", "expected a float dtype"},
      {"sigmoid", {"i32[2]"}, "", "expected a float dtype"},
      {"silu", {"f32[2]"}, "extra = 1", "attribute extra is unknown"},
      {"scale", {"f32[2]"}, "factor = 2", "another type"},
      {"add_scalar", {"f32[2]"}, "", "attribute value is missing"},
      {"cast", {"f32[2]"}, "dtype = \"f64\"", "another type"},
      {"reshape", {"f32[2, 3]"}, "shape = [5]", "another number of elements"},
      {"reshape", {"f32[2, 3]"}, "shape = [-6]", "negative dim"},
      {"reshape", {"f32[0]"}, "shape = [0, 9223372036854775807, 3]", "too large"},
      {"transpose", {"f32[2, 3]"}, "perm = [0, 0]", "no permutation"},
      {"transpose", {"f32[2, 3]"}, "perm = [0]", "no permutation"},
      {"transpose", {"f32[2, 3]"}, "perm = [0, 2]", "no permutation"},
      {"transpose", {"f32[2, 3]"}, "perm = [-1, 0]", "no permutation"},
      {"slice", {"f32[4]"}, "axis = 1, start = 0, size = 1", "axis 1 is not in [0, 1)"},
      {"slice", {"f32[4]"}, "axis = 0, start = 3, size = 2", "is not within extent 4"},
      {"slice", {"f32[4]"}, "axis = 0, start = -1, size = 2", "is not within"},
      {"slice", {"f32[4]"}, "axis = 0, start = 1, size = 9223372036854775807", "is not within"},
      {"slice", {"f32[4]"}, "axis = 0, start = 9223372036854775807, size = 2", "is not within"},
      {"pad", {"f32[4]"}, "axis = -1, before = 0, after = 1", "axis -1"},
      {"pad", {"f32[4]"}, "axis = 0, before = -1, after = 1", "negative or too large"},
      {"pad", {"f32[4]"}, "axis = 0, before = 9223372036854775800, after = 7", "too large"},
      {"concat", {}, "axis = 0", "has 0 operands, expected 1 or more"},
      {"concat", {"f32[2, 3]", "f32[3, 3]"}, "axis = 1", "but for axis 1"},
      {"concat", {"f32[2]", "f64[2]"}, "axis = 0", "but for axis 0"},
      {"concat", {"f32[2]", "f32[]"}, "axis = 0", "but for axis 0"},
      {"concat", {"f32[]", "f32[]"}, "axis = 0", "axis 0 is not in [0, 0)"},
      {"broadcast", {"f32[3]"}, "shape = [2, 3], axes = [1]", "expected shape [2]"},
      {"broadcast", {"f32[3]"}, "shape = [2, 3], axes = [0, 0]", "axes must ascend"},
      {"broadcast", {"f32[3]"}, "shape = [2, 3], axes = [2]", "axes must ascend"},
      {"broadcast", {"f32[]"}, "shape = [4294967296, 4294967296], axes = [0, 1]", "too large"},
      {"constant", {}, "value = 1.0, shape = [-2], dtype = f32", "negative"},
      {"reduce_sum", {"f32[2, 3]"}, "axes = [1, 0]", "axes must ascend"},
      {"reduce_sum", {"i32[2, 3]"}, "axes = [0]", "expected a float dtype"},
      {"reduce_max", {"f32[2, 3]"}, "axes = [-1]", "axes must ascend"},
      {"sum_squares", {"f32[2]"}, "chunk = 0", "chunk is 0"},
      {"tree_sum", {"f32[2, 3]"}, "", "expected rank 1"},
      {"matmul", {"f32[2, 3]", "f32[4, 3]"}, kNoTrans, "inner dims are 3 and 4"},
      {"matmul", {"f32[2, 3]", "f32[2, 3, 4]"}, kNoTrans, "equal rank"},
      {"matmul", {"f32[5, 2, 3]", "f32[6, 3, 4]"}, kNoTrans, "equal leading dims"},
      {"matmul", {"f32[3]", "f32[3]"}, kNoTrans, "rank of at least 2"},
      {"matmul", {"f32[2, 3]", "bf16[3, 4]"}, kNoTrans, "one dtype"},
      {"matmul", {"u8[4294967296, 1]", "u8[1, 4294967296]"}, kNoTrans, "float dtype"},
      {"matmul", {"f32[4294967296, 1]", "f32[1, 4294967296]"}, kNoTrans, "too large"},
      {"softmax", {"f32[]"}, "", "rank of at least 1"},
      {"softmax_grad", {"f32[2, 3]", "f32[3, 2]"}, "", "the type of operand 0"},
      {"silu_grad", {"f32[2]", "f32[]"}, "", "the type of operand 0"},
      {"causal_mask", {"f32[3]"}, "fill = 0.0", "expected [.., T, S]"},
      {"rms_norm", {"f32[2, 4]", "f32[2]"}, "eps = 1e-05", "expected f32[4]"},
      {"rms_norm", {"f32[]", "f32[]"}, "eps = 1e-05", "rank of at least 1"},
      {"rms_norm_grad", {"f32[2, 4]", "f32[2, 4]", "f32[4]", "f32[4]"}, "", "expected f32[2]"},
      {"rms_norm_grad", {"f32[4, 2]", "f32[2, 4]", "f32[4]", "f32[2]"}, "", "expected f32[2, 4]"},
      {"rope_table", {}, kOddRope, "even"},
      {"rope_table", {}, kYarnRope, "scaling is none of"},
      {"rope_table", {}, kNanRope, "theta"},
      {"rope_table", {}, kIntRope, "dtype is not a float"},
      {"rotate", {"f32[2, 5, 3, 8]", "f32[5, 8]", "f32[5, 4]"}, "inverse = true", "[T, K/2]"},
      {"rotate", {"f32[2, 5, 3, 7]", "f32[5, 3]", "f32[5, 3]"}, "inverse = true", "odd"},
      {"rotate", {"f32[5, 3, 8]", "f32[5, 4]", "f32[5, 4]"}, "inverse = true", "rank 4"},
      {"gather", {"f32[100, 8]", "i64[2]"}, "", "expected i32[2] (ids)"},
      {"gather", {"f32[100]", "i32[2]"}, "", "rank 2"},
      {"gather", {"f32[1, 4294967296]", "i32[4294967296]"}, "", "too large"},
      {"scatter_add", {"i32[2]", "f32[3, 8]"}, "rows = 5", "[ids.., D]"},
      {"scatter_add", {"i32[2]", "f32[2, 8]"}, "rows = -5", "rows is -5"},
      {"scatter_add", {"i32[2]", "f32[2, 8]"}, "rows = 9223372036854775807", "too large"},
      {"cross_entropy", {"f32[6, 9]", "i32[9]"}, "", "one target a row"},
      {"cross_entropy", {"f32[2, 6, 9]", "i32[6]"}, "", "rank 2"},
      {"cross_entropy_grad", {"bf16[6, 9]", "i32[6]", "bf16[6]", "f32[]"}, "", "expected f32[6]"},
      {"cross_entropy_grad", {"f32[6, 9]", "i32[6]", "f32[6]", "f32[6]"}, "", "expected f32[]"},
      {"accumulate", {"bf16[2]", "bf16[2]"}, "", "expected f32 or f64"},
      {"accumulate", {"f32[2]", "f32[]"}, "", "the shape of the accumulator"},
      {"accumulate", {"f32[2]", "i32[2]"}, "", "expected a float dtype"},
      {"philox_uniform", {"i32[2]"}, "shape = [3], dtype = f32", "the key"},
      {"philox_uniform", {"i64[2]"}, "shape = [3], dtype = i32", "not a float"},
      {"matmul_accumulate", {"f32[2, 5]", "f32[2, 3]", "f32[3, 4]"}, kNoTrans, "accumulator"},
      {"matmul_accumulate", {"f32[1, 2, 4]", "f32[1, 2, 3]", "f32[1, 3, 4]"}, kNoTrans, "rank 2"},
      {"flash_attention",
       {"f32[2, 5, 6, 8]", "f32[2, 5, 4, 8]", "f32[2, 5, 4, 8]"},
       kFlash,
       "4 key-value heads do not divide 6"},
      {"flash_attention",
       {"f32[2, 5, 6, 8]", "f32[2, 5, 0, 8]", "f32[2, 5, 0, 8]"},
       kFlash,
       "0 key-value heads"},
      {"flash_attention",
       {"f32[2, 5, 6, 8]", "f32[2, 5, 3, 8]", "f32[2, 5, 3, 4]"},
       kFlash,
       "the type of operand 1"},
      {"flash_attention_grad",
       {"f32[2, 5, 6, 8]", "f32[2, 5, 6, 8]", "f32[2, 5, 3, 8]", "f32[2, 5, 3, 8]",
        "f32[2, 5, 6, 8]", "f32[2, 5, 6]"},
       kFlash,
       "log-sum-exp"},
      {"swiglu", {"f32[2]", "f32[3]"}, "", "the type of operand 0"},
      {"swiglu_grad", {"f32[2]", "f32[2]", "bf16[2]"}, "", "the type of operand 0"},
      {"add_rms_norm", {"f32[2, 4]", "f32[4]", "f32[4]"}, "eps = 1e-05", "the type of operand 0"},
      {"add_rms_norm_grad",
       {"f32[2, 4]", "f32[2, 4]", "f32[2, 4]", "f32[2]", "f32[2]"},
       "",
       "expected f32[4]"},
      {"adamw",
       {"bf16[2]", "bf16[2]", "bf16[2]", "bf16[2]", "f32[]", "f32[]", "f32[]", "f32[]"},
       kAdam,
       "expected f32 or f64"},
      {"adamw",
       {"f32[2]", "f32[2]", "f32[2]", "f32[2]", "f32[1]", "f32[]", "f32[]", "f32[]"},
       kAdam,
       "a scalar"},
      {"all_reduce", {"f32[2]"}, "group = \"\", reduce = \"sum\"", "group is empty"},
      {"all_reduce", {"f32[2]"}, "group = \"dp\", reduce = \"min\"", "expected \"sum\""},
      {"all_gather", {"f32[4]"}, "group = \"dp\", members = 2, sizes = [9]", "do not hold 9"},
      {"all_gather", {"f32[4]"}, "group = \"dp\", members = 0, sizes = [4]", "members is 0"},
      {"reduce_scatter", {"i32[4]"}, "group = \"dp\", members = 2, pieces = [2]", "a float dtype"},
      {"reduce_scatter", {"f32[4]"}, "group = \"dp\", members = 2, pieces = [2, 2]", "2 pieces"},
      {"gather_shard", {"f32[4, 8]", "i32[2]", "i64[]"}, "rows = 7", "the rank's index"},
      {"gather_shard", {"f32[4, 8]", "i32[2]", "i32[]"}, "rows = -1", "rows is -1"},
      {"scatter_add_shard",
       {"i32[2]", "f32[2, 8]", "i32[1]"},
       "rows = 7, shard_rows = 4",
       "the rank's index"},
      {"scatter_add_shard",
       {"i32[2]", "f32[2, 8]", "i32[]"},
       "rows = 7, shard_rows = -4",
       "shard_rows is -4"},
      {"cross_entropy_max", {"f32[6, 4, 2]", "i32[]"}, "vocab = 7", "rank 2"},
      {"cross_entropy_max", {"f32[6, 4]", "i32[]"}, "vocab = -7", "vocab is -7"},
      {"cross_entropy_shard",
       {"bf16[6, 4]", "i32[6]", "bf16[6]", "i32[]"},
       "vocab = 7",
       "expected f32[6]"},
      {"cross_entropy_shard",
       {"f32[6, 4]", "i32[4]", "f32[6]", "i32[]"},
       "vocab = 7",
       "one target a row"},
      {"cross_entropy_combine",
       {"i32[6]", "bf16[6]", "bf16[6]", "bf16[6]"},
       "",
       "expected f32 or f64"},
      {"cross_entropy_combine", {"i32[6]", "f32[6]", "f32[5]", "f32[6]"}, "", "one a target"},
      {"cross_entropy_shard_grad",
       {"f32[6, 4]", "i32[6]", "f32[6]", "f32[]", "f32[]"},
       "vocab = 7",
       "the rank's index"},
      {"slice_shard", {"f32[6, 5]", "i32[]"}, "axis = 2, members = 2", "axis is 2"},
      {"slice_shard", {"f32[6, 5]", "i32[]"}, "axis = 1, members = 0", "members is 0"},
      {"quantize_f8",
       {"bf16[2, 3]", "f32[]"},
       "dtype = bf16, transposed = false",
       "expected f8e4m3 or f8e5m2"},
      {"quantize_f8", {"bf16[2]", "f32[]"}, "dtype = f8e4m3, transposed = true", "rank 2"},
      {"quantize_f8", {"i32[2]", "f32[]"}, "dtype = f8e4m3, transposed = false", "float dtype"},
      {"quantize_f8_observed",
       {"bf16[2, 3]", "f32[]", "bf16[]"},
       "dtype = f8e4m3, transposed = false",
       "the largest magnitude seen"},
      {"quantize_f8_both", {"bf16[2]", "f32[]", "f32[]"}, "dtype = f8e4m3", "rank 2"},
      {"scaled_matmul",
       {"bf16[2, 3]", "f8e5m2[3, 4]", "f32[]", "f32[]"},
       "trans_a = false, trans_b = false, dtype = bf16",
       "expected an 8-bit float type"},
      {"scaled_matmul",
       {"f8e4m3[2, 3]", "f8e5m2[4, 4]", "f32[]", "f32[]"},
       "trans_a = false, trans_b = false, dtype = bf16",
       "inner dims"},
      {"scaled_matmul",
       {"f8e4m3[2, 3]", "f8e5m2[3, 4]", "f32[]", "f32[1]"},
       "trans_a = false, trans_b = false, dtype = bf16",
       "the scale of an operand"},
      {"scaled_matmul",
       {"f8e4m3[2, 3]", "f8e5m2[3, 4]", "f32[]", "f32[]"},
       "trans_a = false, trans_b = false, dtype = f8e4m3",
       "expected a wider float type"},
      {"scaled_matmul_accumulate",
       {"f32[2, 5]", "f8e4m3[2, 3]", "f8e5m2[3, 4]", "f32[]", "f32[]"},
       kNoTrans,
       "accumulator"},
      {"update_amax", {"f32[]", "f32[2]"}, "", "the largest magnitude seen"},
      {"linear_cross_entropy", {"f32[6, 4]", "f32[9, 5]", "i32[6]"}, "", "f32[9, 5]"},
      {"linear_cross_entropy_grad",
       {"f32[9, 5]", "f32[6, 4]", "f32[9, 4]", "i32[6]", "f32[]"},
       "",
       "f32[9, 4]"},
      {"linear_cross_entropy", {"f8e4m3[6, 4]", "f8e4m3[9, 4]", "i32[6]"}, "", "8-bit rows"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f8e4m3[6, 4]", "f8e4m3[9, 4]", "i32[6]", "f32[]"},
       "",
       "expected 7 or 9"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f32[6, 4]", "f32[9, 4]", "i32[6]", "f32[]", "f32[]", "f32[]"},
       "",
       "expected 5"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f8e5m2[6, 4]", "f8e5m2[9, 4]", "i32[6]", "f32[]", "f32[]", "f32[]"},
       "",
       "expected f8e4m3"},
      {"linear_cross_entropy_grad",
       {"f32[9, 4]", "f8e4m3[6, 4]", "f8e4m3[9, 4]", "i32[6]", "f32[]", "f32[]", "f32[]",
        "f8e4m3[4, 6]", "f8e4m3[9, 4]"},
       "",
       "the transpose of an operand"},
      {"fused_pointwise", {"f32[2, 3]", "f32[2]"}, "program = \"add 0 1\"", "a suffix of"},
      {"fused_pointwise",
       {"f32[2, 3]"},
       "program = \"add 0 1\"",
       "instruction 0 of the program is malformed"},
  };
  return kCases;
}

TEST(ShapeRulesTest, GoodCallsGiveTheirTypes) {
  std::set<std::string_view> seen;
  for (const Case& c : good_cases()) {
    const Result<Graph> graph = parse_graph(text_of(c, c.types));
    EXPECT_TRUE(graph.ok()) << c.op << ": " << graph.status().to_string();
    seen.insert(c.op);
  }
  for (const OpInfo& info : op_table()) EXPECT_TRUE(seen.contains(info.name)) << info.name;
}

TEST(ShapeRulesTest, BadCallsAreRefused) {
  std::set<std::string_view> seen;
  for (const Case& c : bad_cases()) {
    const Result<Graph> graph = parse_graph(text_of(c, "f32[]"));
    ASSERT_FALSE(graph.ok()) << c.op << " " << c.types;
    EXPECT_NE(graph.status().message().find(c.types), std::string::npos)
        << c.op << ": " << graph.status().message();
    seen.insert(c.op);
  }
  for (const OpInfo& info : op_table()) EXPECT_TRUE(seen.contains(info.name)) << info.name;
}

TEST(ShapeRulesTest, HostileAttributeValuesAreSafe) {
  // Every integer attribute of every op, at values that overflow whatever is added to them.
  for (const Case& c : good_cases()) {
    const OpInfo& info = op_info(*parse_op_kind(c.op));
    const Result<Graph> graph = parse_graph(text_of(c, c.types));
    ASSERT_TRUE(graph.ok()) << c.op;
    std::vector<TensorType> operands;
    for (ValueId v : graph->op(0).operands) operands.push_back(graph->type(v));
    for (const AttrSpec& spec : info.attrs) {
      for (int64_t value : {INT64_MIN, INT64_MAX, INT64_MAX - 1, int64_t{-1}, int64_t{0}}) {
        Attrs attrs = graph->op(0).attrs;
        if (spec.type == AttrSpec::Type::kInt) attrs.set(spec.name, value);
        if (spec.type == AttrSpec::Type::kIntList) {
          attrs.set(spec.name, std::vector<int64_t>(3, value));
        }
        const auto types = infer_types(info.kind, operands, attrs);
        if (!types.ok()) continue;
        for (const TensorType& type : *types) EXPECT_TRUE(check_type(type).ok()) << c.op;
      }
    }
  }
}

}  // namespace
}  // namespace sgactor::graph
