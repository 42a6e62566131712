// Runs a study and writes what it comes to: study.md, study.json and report.html in its folder.
#pragma once

#include <string>

#include "study/study.h"
#include "study/sweep.h"

namespace bhyt::study {

struct StudyOutcome {
  std::string text;  // study.md
  Json json;         // study.json
  int signal = 0;
  bool failed = false;  // a run or a command ended with an error
};

// Names the data that a study trains on where that is generated; UsageError where the user has to name it. Writes nothing.
void name_data(Study& study, const fs::path& folder);

// The runs of a study, or the models that it trains first; none where it trains nothing.
Plan plan_of(const Study& study);
// Where plan_of's runs go: models that are trained first have a folder of their own below.
SweepOptions first_options(const Study& study, SweepOptions options);

StudyOutcome run_study(const Study& study, const SweepOptions& options);

}  // namespace bhyt::study
