// A site of the norm family as a case (tests/ops/case.h), and the sites that the method table asks for.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "ops/norm/methods.h"
#include "tests/ops/case.h"

namespace bhyt::testing {

// Options of a case beside the site itself.
struct SiteExtra {
  Fill fill = Fill::normal;
  double scale = 1;  // of the data
  double offset = 0;
  bool add = false;   // the norm sees x + h
  double lambda = 0;  // instead of the plan's
  Correction correction = Correction::none;
  double calibration = 1;
  double aux = 0;
  bool filling = false;  // with aux: every third row belongs to no text, and a tensor halves the auxiliary loss
  bool stop = false;
  std::set<std::string> frozen = {};  // parameters whose gradient nobody asks for
};

// One site on n rows of c columns, against the formula in double. Where the statistic is given, the block's first norm is part of it.
Case site_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const SiteExtra& e = {});

NormPlan plan_of(std::string_view method, std::int64_t layers = 4, std::int64_t d = 64);

// Every kind of site that the table can ask for, once, under the name of the first method that has it.
std::map<std::string, SitePlan> distinct_sites();

}  // namespace bhyt::testing
