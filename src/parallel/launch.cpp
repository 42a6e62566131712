#include "parallel/launch.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
#include "parallel/gpus.h"

namespace bhyt::parallel {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libbhyt_mpi.so";

// How the names begin of what mpirun, or srun with a PMI, says to the processes it starts.
constexpr const char* kLaunchers[] = {"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_WORLD_"};

bool launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"})
    if (std::getenv(name)) return true;
  return false;
}

// How many, as far as the launcher says; 0: it does not.
int told_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (const char* text = std::getenv(name)) return std::max(std::atoi(text), 1);
  // srun --mpi=pmix. A batch script has the number of tasks, too, but is none of them.
  const char* tasks = std::getenv("PMIX_RANK") ? std::getenv("SLURM_STEP_NUM_TASKS") : nullptr;
  return tasks ? std::max(std::atoi(tasks), 1) : 0;
}

// The library where it is: beside the program, or where it is installed.
std::vector<fs::path> libraries() {
  std::error_code failed;
  const fs::path beside = fs::read_symlink("/proc/self/exe", failed).parent_path();
  std::vector<fs::path> files = {beside / kLibrary, beside.parent_path() / kLibrary, beside.parent_path() / "lib" / "bhyt" / kLibrary};
  std::erase_if(files, [&](const fs::path& file) { return !fs::exists(file, failed); });
  return files;
}

void* load() {
  std::string wrong;
  for (const fs::path& file : libraries()) {
    if (void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;  // global: Open MPI loads parts that look for it
    wrong = fmt::format(": {}", ::dlerror());
  }
  throw Error(
      fmt::format("MPI launched this process, but {} could not be loaded from beside the program{}; {}, "
                  "with the MPI that launches it (Debian: libopenmpi-dev, openmpi-bin)",
                  kLibrary, wrong, wrong.empty() ? "build with -DBHYT_MPI=ON" : "build it on this system"));
}

struct State {
  std::unique_ptr<Group> group;
  bool asked = false;
  std::atomic<bool> all_fail = false;  // the error that ends this process ends all of them
};
State& state() {
  static State s;
  return s;
}

}  // namespace

int launched_ranks() { return std::max(told_ranks(), 1); }

Group* group() {
  State& s = state();
  if (s.asked) return s.group.get();
  s.asked = true;
  if (!launched()) return nullptr;
  void* library = nullptr;
  try {
    library = load();
  } catch (const Error& e) {
    if (told_ranks() != 1) throw;
    // Alone, it needs no MPI. One that is there and does not load is not what was meant, though.
    if (!libraries().empty()) log::warning("the one process goes on without MPI: {}", e.what());
    return nullptr;
  }
  void* const found = ::dlsym(library, kOpen);
  check(found != nullptr, "{} has no {}: it is not of this program", kLibrary, kOpen);
  OpenGroup open = nullptr;
  std::memcpy(&open, &found, sizeof open);
  s.group.reset(open());
  return s.group.get();
}

Group* opened() { return state().group.get(); }

void on_all_ranks(bool ends) { state().all_fail = ends; }
bool ends_all() { return state().all_fail; }
bool told_by_another() { return state().all_fail && state().group && state().group->rank() > 0; }

void leave(int code) {
  State& s = state();
  if (!s.group) return;
  Group& g = *s.group;
  if (code == 0 || code >= 128 || s.all_fail) {  // a signal that all heeded is a good end
    g.close();
    return;
  }
  g.abort(code);
}

std::vector<std::string> gather_texts(Group& g, const std::string& own) {
  const auto n = static_cast<std::size_t>(g.size()), me = static_cast<std::size_t>(g.rank());
  std::vector<std::uint64_t> sizes(n);
  sizes[me] = own.size();
  g.gather(sizes.data(), sizeof(std::uint64_t), sizeof(std::uint64_t));
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::string all(most * n, '\0');
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(me * most));
  if (most > 0) g.gather(all.data(), most, most);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(all.substr(i * most, sizes[i]));
  return out;
}

std::vector<std::int64_t> gather_numbers(Group& g, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(g.size()));
  all[static_cast<std::size_t>(g.rank())] = own;
  g.gather(all.data(), sizeof own, sizeof own);
  return all;
}

void barrier(Group& g) {
  std::vector<char> tokens(static_cast<std::size_t>(g.size()));
  g.gather(tokens.data(), 1, 1);
}

void together(Group& g, const std::function<void()>& work) {
  std::string wrong;
  bool usage = false;
  try {
    work();
  } catch (const UsageError& e) {
    wrong = e.what();
    usage = true;
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  const std::vector<std::string> all = gather_texts(g, wrong.empty() ? "" : (usage ? "u" : "e") + wrong);
  const bool alike = std::all_of(all.begin(), all.end(), [&](const std::string& text) { return text == all.front(); });
  for (int rank = 0; rank < g.size(); ++rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    on_all_ranks();
    const std::string message = !alike ? fmt::format("rank {} on {}: {}", rank, g.host(rank), text.substr(1)) : text.substr(1);
    if (text[0] == 'u') throw UsageError(message);
    throw Error(message);
  }
}

void together(Group* g, const std::function<void()>& work) {
  if (g)
    together(*g, work);
  else
    work();
}

namespace {

// What this rank can compute on: no GPU where the device that is asked for is none.
VisibleGpus gpus_for(const std::string& name, const std::string& key) {
  VisibleGpus gpus;
  const Device device = parse_device(name, key);
  for (int i = 0; device.is_cuda() && i < cuda::device_count(); ++i) gpus.ids.push_back(cuda::gpu_uuid(i));
  if (name.find(':') != std::string::npos) gpus.named = device.index;
  return gpus;
}

}  // namespace

Device own_device(Group& g, const std::string& name, const std::string& key, bool share_gpu, const std::string& otherwise) {
  std::string own;
  together(g, [&] { own = to_text(gpus_for(name, key)); });
  std::vector<VisibleGpus> all;
  for (const std::string& text : gather_texts(g, own)) all.push_back(visible_gpus_from(text));
  if (std::ranges::all_of(all, [](const VisibleGpus& gpus) { return gpus.ids.empty(); })) return Device::cpu();
  Device device = Device::cpu();
  together(g, [&] {
    const std::vector<int> numbers = share_out_gpus(all, share_gpu, otherwise);
    device = parse_device(fmt::format("cuda:{}", numbers[static_cast<std::size_t>(g.rank())]), key);
  });
  return device;
}

int own_threads(const Group& g, int asked) {
  if (asked > 0 || g.size() == 1) return asked;
  return std::max(1, std::min(available_cores(), static_cast<int>(std::thread::hardware_concurrency()) / g.local_size()));
}

std::vector<std::string> environment_of_one() {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const bool of_launcher =
        std::any_of(std::begin(kLaunchers), std::end(kLaunchers), [&](const char* name) { return text.starts_with(name); });
    if (!of_launcher) out.push_back(text);
  }
  return out;
}

}  // namespace bhyt::parallel
