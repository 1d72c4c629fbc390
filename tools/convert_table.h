// What a conversion will make, as `kvc convert` tells it; and a converted model against logits that somebody
// else has.
#pragma once
#include <string>

#include "models/convert/convert_plan.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {

std::string PlanTable(const ConvertPlan& plan);
Json PlanJson(const ConvertPlan& plan);

struct ReferenceCheck {
  int32_t n_rows = 0, n_same = 0;  // rows of logits, and those whose largest is that of the reference
  double distance = 0;             // of the worst logit
};
// document: {"tokens": [..] (or "ids"), "logits": [[V], ..]}: those after each of the last tokens, or one row
// after the last. path: where it is from. Throws Failure.
ReferenceCheck CheckAgainst(const std::string& model_path, const Json& document, const std::string& path);

}  // namespace kvc::tool
