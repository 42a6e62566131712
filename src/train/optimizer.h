// What makes new weights out of gradients, with the state it carries from step to step and its part of a checkpoint. Of several processes
// each keeps the state of its shard (model/shard.h) and makes new what lies there.
// A second optimizer is a folder of ops, a class and a row of the table in optimizers.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "ops/adamw/adamw.h"
#include "train/config.h"
#include "train/masters.h"

namespace bhyt::train {

// One update. A loss or a norm that is not finite leaves weights and state as they were; that is decided on the device.
struct Update {
  double lr = 0;
  std::int64_t number = 1;  // from 1, skipped steps not counted
  Tensor gradients;         // fp32, an arena of the shard
  Tensor grad_norm, loss;   // fp32 [1]
};

class Optimizer {
 public:
  Optimizer(const Parameters& parameters, Shard shard);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual void step(const Update& update) = 0;

  const Shard& shard() const { return shard_; }

  // Global norm of the gradients, fp32 [1]: over what is trained. Of several processes each has a sum of squares, fp64 [1], that is added
  // up first.
  void gradient_norm(const Tensor& gradients, const Tensor& norm) const;
  void squares(const Tensor& gradients, const Tensor& sum) const;

  Masters& masters() { return masters_; }
  const Masters& masters() const { return masters_; }
  std::size_t bytes() const;  // state and low bits of the masters

  // NAME.PARAMETER for every state arena and, in a bf16 run, master.PARAMETER. What is a part of a parameter has a place of its own in the
  // metadata: "first.PARAMETER", the element it begins with. What every process keeps is written by the first.
  void save(std::vector<SafeTensorOut>& tensors, std::map<std::string, std::string>& metadata) const;
  // State and, where the files hold them, masters (and with them the weights): the files may be of a run in another type, and of any number
  // of processes.
  void load(const std::vector<SafeTensors>& files);

 protected:
  struct StateArena {
    std::string name;  // in checkpoints
    OwnedTensor values;
  };
  Tensor add_state(const std::string& name);  // fp32, zero; an arena beside the parameters
  const std::vector<ArenaSpan>& spans() const { return spans_; }
  Context& context() const { return parameters_.context(); }

 private:
  const Parameters& parameters_;
  Shard shard_;
  std::vector<ArenaSpan> spans_;
  std::vector<ArenaSpan> counted_;  // those whose squares this process counts
  Masters masters_;
  std::vector<StateArena> state_;
};

// The names that train.optimizer may have.
std::vector<std::string> optimizer_names();
// The optimizer that train.optimizer names, with the settings of the section.
std::unique_ptr<Optimizer> make_optimizer(const TrainSection& settings, const Parameters& parameters, std::int64_t rank = 0,
                                          std::int64_t ranks = 1);
// What its bytes() will be, for arenas of so many elements.
std::size_t planned_optimizer_bytes(const TrainSection& settings, std::int64_t arena, DType type);

// A tensor's values from a file, fp32 on the host; Error where it has another size.
std::vector<float> read_tensor(const SafeTensors& file, const std::string& name, std::int64_t size);
// A tensor that is read from its device when it is written.
SafeTensorOut tensor_from(Context& ctx, std::string name, std::vector<std::int64_t> shape, const Tensor& values);

}  // namespace bhyt::train
