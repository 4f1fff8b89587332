#pragma once
#include "graph/base/status.h"
#include "graph/models/llama.h"
#include "transport/storage/safetensors.h"

#include <string>

namespace sgactor::apps {

/// A tensor that the model has no place for means that it is another model. Rotary tables, which
/// old exports carry, and a second copy of a tied head are let through. Errors: kInvalidArgument
/// naming `hf_dir` and the first such tensor.
Status check_no_surplus(const std::string& hf_dir, const transport::HfDirectory& hf,
                        const graph::LlamaConfig& config);

/// Makes a checkpoint of step 0 in `out_dir`/ckpt from the weights of a Hugging Face directory, as
/// f32, with its config and the place of its tokenizer. `generate` and `ckpt export` take it like a
/// run; training starts from it with model.weights. Returns the step directory. Errors:
/// kInvalidArgument: `out_dir` exists and is not empty; not a Llama; a tensor that is missing, too
/// many or shaped otherwise. Nothing is written then.
Result<std::string> import_hf(const std::string& hf_dir, const std::string& out_dir);

}  // namespace sgactor::apps
