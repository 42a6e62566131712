// GPUs by name, as their data sheets have them: what a plan needs to know of machines that are not here.
#pragma once

#include <string>

namespace bhyt::plan {

struct Gpu {
  const char* name;
  const char* title;
  double memory;  // bytes, as the driver reports them
  double flops;   // of dense bf16 products, a second
  double hbm;     // bytes of its memory, read or written, a second
  double link;    // bytes a second to the other GPUs of its node, in one direction
  const char* link_name;
};

const Gpu& find_gpu(const std::string& name);  // UsageError that lists the names

// "400G": gigabits a second, as networks are sold; returns bytes. UsageError for what is no such rate.
double parse_network(const std::string& text);

// What is there to train on: nodes of equally many GPUs, one rank on each.
struct Cluster {
  Gpu gpu;
  int per_node = 1, nodes = 1;
  double network = 0;  // bytes a second that a node sends, and as many it receives, over all its adapters

  int ranks() const { return per_node * nodes; }
};

}  // namespace bhyt::plan
