#pragma once
#include "graph/compiler/explain_schedule.h"
#include "graph/compiler/pipeline.h"

#include <string>
#include <string_view>

namespace sgactor::graph {

struct ExplainOptions {
  std::string title;    ///< job or model; any bytes
  std::string subject;  ///< one line below it
  DeviceModel device;   ///< for estimated times
};

/// One HTML page without scripts or anything from outside: passes with what each changed and why;
/// the graph by layer (launches of each phase, and the edges between them); the arena over time
/// (a rectangle a buffer: live range by offset); a step's schedule by lane; cost by subgraph.
/// Of program 0. Every name is escaped. Long plans are cut to what a browser draws, and say so.
/// Pure, deterministic. Pre: verify_plan(compiled.plan) is ok.
std::string explain_html(const Compiled& compiled, const ExplainOptions& options);

/// Text for HTML content and quoted attributes; control characters become U+FFFD.
std::string html_escape(std::string_view text);

}  // namespace sgactor::graph
