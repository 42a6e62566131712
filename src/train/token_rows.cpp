#include "train/token_rows.h"

namespace bhyt::train {

namespace {

LoaderOptions loader_options(const std::vector<DataPart>& parts, const RunConfig& config, bool shuffle) {
  return {.parts = parts,
          .seq_len = config.data.seq_len,
          .batch = config.train.batch,
          .seed = config.run.seed,
          .shuffle = shuffle,
          .attend = config.data.attend};
}

class TrainingRows : public BatchSource {
 public:
  explicit TrainingRows(const LoaderOptions& options) : loader_(options) {}
  std::int64_t rows() const override { return loader_.rows(); }
  std::int64_t batches() const override { return loader_.batches(); }
  void start(std::int64_t n) override { loader_.start(n); }
  HostBatch next() override { return loader_.next(); }

 private:
  Loader loader_;
};

// Made when it is asked for: an evaluation is short, and a thread that reads ahead would read beyond it.
class ValidationRows : public BatchSource {
 public:
  explicit ValidationRows(const LoaderOptions& options) : loader_(options) {}
  std::int64_t rows() const override { return loader_.rows(); }
  std::int64_t batches() const override { return loader_.batches(); }
  void start(std::int64_t n) override { at_ = n; }
  HostBatch next() override {
    HostBatch out;
    loader_.batch(at_++, out);
    return out;
  }

 private:
  Loader loader_;
  std::int64_t at_ = 0;
};

}  // namespace

std::unique_ptr<BatchSource> training_rows(const std::vector<DataPart>& parts, const RunConfig& config) {
  return std::make_unique<TrainingRows>(loader_options(parts, config, true));
}

std::unique_ptr<BatchSource> validation_rows(const std::vector<DataPart>& parts, const RunConfig& config) {
  return std::make_unique<ValidationRows>(loader_options(parts, config, false));
}

}  // namespace bhyt::train
