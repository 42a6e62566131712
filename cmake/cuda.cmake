# The CUDA backend. Kernels are compiled by nvcc directly (one rule per .cu), which serves native and cross builds alike.
#   BHYT_CUDA_ARCHS: sm_80 runs anywhere from Ampere on, sm_90a holds the Hopper paths, ptx lets the driver compile for what comes later.
set(BHYT_CUDA_ARCHS "80;90a;ptx" CACHE STRING "CUDA targets: 80, 90a, ptx")
find_program(NVCC nvcc HINTS /usr/local/cuda/bin REQUIRED)
get_filename_component(cuda_home ${NVCC} REALPATH)
get_filename_component(cuda_home ${cuda_home}/../.. ABSOLUTE)
file(GLOB cuda_includes ${cuda_home}/targets/*/include)
list(GET cuda_includes 0 CUDA_INCLUDE)
if(CMAKE_CROSSCOMPILING)
  set(cuda_libraries ${PROJECT_SOURCE_DIR}/.deps/x86_64/cuda/lib)
  # nvcc's front end is this machine's and does not know the target's 80-bit float and pause, which the standard headers mention.
  set(cuda_flags -ccbin ${CMAKE_CXX_COMPILER} "-D__float80=long double" "-D__builtin_ia32_pause()=((void)0)")
else()
  set(cuda_libraries ${cuda_home}/lib64)
  set(cuda_flags -ccbin ${CMAKE_CXX_COMPILER})
endif()
find_library(CUDART_LIBRARY cudart_static PATHS ${cuda_libraries} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
find_library(CUBLASLT_LIBRARY cublasLt PATHS ${cuda_libraries} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
find_library(CUDNN_LIBRARY cudnn PATHS ${cuda_libraries} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
# cudnn-frontend's headers: scripts/install_deps.sh cuda puts them under .deps, or -DCUDNN_FRONTEND_INCLUDE=… says where they are.
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h PATHS ${PROJECT_SOURCE_DIR}/.deps/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
set(cuda_archs "")
foreach(arch ${BHYT_CUDA_ARCHS})
  if(arch STREQUAL "ptx")
    list(APPEND cuda_archs -gencode arch=compute_80,code=compute_80)
  elseif(arch STREQUAL "90")
    message(FATAL_ERROR "BHYT_CUDA_ARCHS: expected 90a for Hopper, got 90, which lacks the instructions of its kernels")
  else()
    list(APPEND cuda_archs -gencode arch=compute_${arch},code=sm_${arch})
  endif()
endforeach()
set(cuda_warnings -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Wno-unused-parameter -Xcudafe --diag_suppress=20012)
if(BHYT_WERROR)
  list(APPEND cuda_warnings -Werror all-warnings)
endif()

add_library(bhyt_cuda_libraries INTERFACE)
target_link_libraries(bhyt_cuda_libraries INTERFACE ${CUDART_LIBRARY} ${CUBLASLT_LIBRARY} Threads::Threads rt dl)
target_include_directories(bhyt_cuda_libraries SYSTEM INTERFACE ${CUDA_INCLUDE})
if(CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE)
  target_link_libraries(bhyt_cuda_libraries INTERFACE ${CUDNN_LIBRARY})
  target_compile_definitions(bhyt_cuda_libraries INTERFACE BHYT_CUDNN)
  target_include_directories(bhyt_cuda_libraries SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE})
  # It builds graphs, once for each shape: with the library's headers -O3 takes 20 s longer.
  set_source_files_properties(src/ops/attention/attention_cudnn.cpp PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
  message(STATUS "CUDA attention: cuDNN (${CUDNN_LIBRARY}), own kernels where it cannot")
else()
  message(STATUS "CUDA attention: own kernels (cuDNN or cudnn-frontend not found)")
endif()
if(NOT CMAKE_CROSSCOMPILING)
  list(APPEND CMAKE_BUILD_RPATH ${cuda_home}/lib64)
else()
  list(APPEND CMAKE_BUILD_RPATH /usr/local/cuda/lib64)
endif()

# Compiles the kernels of a layer into its library; the target …_kernels compiles them alone.
function(bhyt_cuda_target target kernels)
  set(objects "")
  foreach(kernel ${kernels})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src ${kernel})
    string(REPLACE "/" "_" name ${name})
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
      COMMAND ${NVCC} -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr --expt-extended-lambda -Xcompiler=-fPIC ${cuda_flags} ${cuda_archs} ${cuda_warnings}
              "-I$<JOIN:$<FILTER:$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>,INCLUDE,${PROJECT_BINARY_DIR}/include/>,;-I>" -isystem ${CUDA_INCLUDE} -isystem ${CUDA_INCLUDE}/cccl -MD -MF ${object}.d -c ${kernel} -o ${object}
      DEPENDS ${kernel}
      DEPFILE ${object}.d
      COMMAND_EXPAND_LISTS
      COMMENT "nvcc ${name}"
      VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    list(APPEND objects ${object})
  endforeach()
  add_custom_target(${target}_kernels DEPENDS ${objects})
  target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:bhyt_cuda_libraries>)
endfunction()
