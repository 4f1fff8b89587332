#pragma once
#include "graph/compiler/explain_html.h"

#include <string>

namespace sgactor::graph::explain {

// Sections of the page of explain_html, each complete HTML. Program 0 of the plan.

std::string passes_section(const Compiled& compiled);
std::string cost_section(const Plan& plan, const DeviceModel& device);
std::string layers_section(const Plan& plan);
std::string memory_section(const Plan& plan);
std::string schedule_section(const Plan& plan, const DeviceModel& device);

/// "<rect …><title>…</title></rect>" in one colour class; coordinates in pixels, `title` plain
/// text.
std::string rect(double x, double y, double width, double height, std::string_view css_class,
                 std::string_view title);

}  // namespace sgactor::graph::explain
