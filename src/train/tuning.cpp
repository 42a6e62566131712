#include "train/tuning.h"

#include "core/check.h"
#include "core/log.h"
#include "io/json.h"
#include "ops/gemm/tuning.h"

namespace bhyt::train {

namespace {

using schema::Json;
constexpr int kTuningVersion = 1;

}  // namespace

std::string tuning_text(const Tuning& t) {
  return Json{{"version", kTuningVersion}, {"device", t.device}, {"library", t.library}, {"algorithms", t.algorithms}}.dump(1) + "\n";
}

Tuning parse_tuning(const std::string& text) {
  try {
    const Json j = json_or_discarded(text);
    check(j.at("version") == kTuningVersion, "it has version {}, expected {}", j.at("version").dump(), kTuningVersion);
    return {
        .device = j.at("device"), .library = j.at("library"), .algorithms = j.at("algorithms").get<std::map<std::string, std::string>>()};
  } catch (const Json::exception&) {
    throw Error("it is damaged");
  }
}

Tuning read_tuning(const fs::path& file, const std::string& device, const std::string& library) {
  Tuning mine{.device = device, .library = library, .algorithms = {}};
  if (!fs::exists(file)) return mine;
  try {
    Tuning t = parse_tuning(read_text(file));
    check(t.device == device && t.library == library, "it was made on {} with {}, this is {} with {}", t.device, t.library, device,
          library);
    return t;
  } catch (const Error& e) {
    log::warning("{} is not used: {}; algorithms are chosen anew, and bits may differ", file.string(), e.what());
    return mine;
  }
}

TuningFile::TuningFile(fs::path file, Context& ctx, bool writes) : file_(std::move(file)), ctx_(ctx), writes_(writes) {
  if (!ctx.device().is_cuda()) return;
  written_ = read_tuning(file_, cuda::describe(ctx.device().index), cuda::tuning_library());
  try {
    cuda::set_tuning(ctx, written_.algorithms);
  } catch (const Error& e) {
    log::warning("{} is not used: {}", file_.string(), e.what());
    written_.algorithms.clear();
  }
}

void TuningFile::update() {
  if (!ctx_.device().is_cuda() || !writes_) return;
  Tuning now = written_;
  now.algorithms = cuda::tuning(ctx_);
  if (now == written_) return;
  replace_synced(file_, tuning_text(now));
  written_ = std::move(now);
}

}  // namespace bhyt::train
