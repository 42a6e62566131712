// A trained model under another norm (norm.from=calibrate): what the new norms learn is fitted, site by site, to the outputs of the old
// ones.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/norm_fit.h"
#include "train/batch_source.h"
#include "train/config.h"
#include "train/masters.h"

namespace bhyt::train {

// Whether this run fits norms when it begins; one that goes on has weights of its own.
bool calibrates(const RunConfig& config);

// Whether the checkpoint differs from the run's model in its norms alone, and these can take each other's place; UsageError otherwise.
void check_calibration(const RunConfig& config);

// The checkpoint under its own norm. The target gets all its weights, and of what norms learn that which has the same name and shape: the
// rest begins as in a model that is new.
std::unique_ptr<Model> load_source(const RunConfig& config, const Model& target, Masters& masters, std::optional<std::uint64_t> grow);

// Beside what training takes, while norms are fitted: the source's weights, and what is looked at of both. 0 where none are.
double planned_calibration_bytes(const RunConfig& config);

struct Calibration {
  struct Fitted {
    std::int64_t layer = 0;  // from 1; L+1 is the end
    Site site = Site::site1;
    double error = 0;            // ‖z − z of the source‖ / ‖z of the source‖, over the tokens of the fit
    std::optional<float> scale;  // λ or α
  };
  std::vector<Fitted> sites;
  std::int64_t tokens = 0, held_out = 0;        // fitted to, and scored
  double source_loss = 0, naive = 0, loss = 0;  // of the held out: of the source; of the target before and after
};

// Fits the target's norms in the order in which a pass meets them. Inputs are those of the target itself, so that a site makes up for what
// the ones before it have got wrong; outputs are the source's on the same tokens. Takes the first batches, the last fifth of them held out.
Calibration calibrate(Context& ctx, const Model& source, const Model& target, BatchSource& data);

// The same for people, a line for each block.
std::vector<std::string> describe(const Calibration& c, const std::string& from, const std::string& to);

// Rows of a batch that calibrate() is best given of data with so many rows.
std::int64_t calibration_batch(std::int64_t rows, std::int64_t seq_len);

}  // namespace bhyt::train
