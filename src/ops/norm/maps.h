// The element-wise maps, written once: the CPU loop, the CUDA kernel and the tests share them.
#pragma once

#include "core/math.h"
#include "ops/norm/norm.h"

namespace bhyt {

// value(u) and its derivative, given both u and y = value(u): backward keeps neither.
struct IdMap {
  static constexpr Map kMap = Map::id;
  template <class T>
  BHYT_BOTH static T value(T u) {
    return u;
  }
  template <class T>
  BHYT_BOTH static T slope(T, T) {
    return T(1);
  }
};
struct TanhMap {
  static constexpr Map kMap = Map::tanh;
  template <class T>
  BHYT_BOTH static T value(T u) {
    return fast_tanh(u);
  }
  template <class T>
  BHYT_BOTH static T slope(T, T y) {
    return T(1) - y * y;
  }
};
struct ErfMap {
  static constexpr Map kMap = Map::erf;
  template <class T>
  BHYT_BOTH static T value(T u) {
    return fast_erf(u);
  }
  template <class T>
  BHYT_BOTH static T slope(T u, T) {
    return T(1.1283791670955126) * fast_exp(-u * u);
  }
};

// Runs f(Map{}) with the map's type; a row of methods.cpp whose map is not listed does not compile. constexpr, so that kernels may call it;
// no switch, around which nvcc makes longer code.
template <class F>
constexpr decltype(auto) dispatch_map(Map map, F&& f) {
  if (map == Map::tanh) return f(TanhMap{});
  if (map == Map::erf) return f(ErfMap{});
  return f(IdMap{});
}

}  // namespace bhyt
