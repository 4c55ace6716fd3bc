# The images of `make image`, for those who have Docker:
#
#   docker build --target controller -t fleet.local/fleetjob-controller:0.1.0 .
#   docker build --target runtime    -t fleet.local/fleetjob-runtime:0.1.0 .
#   docker build --target runtime-cuda -t fleet.local/fleetjob-runtime-cuda:0.1.0 .
#
# The last one gets CUDA's toolkit and libraries from PyPI.
#
# The same recipes (images/) and the same script make the root folders; the images hold nothing
# else.
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends make
COPY . /source
WORKDIR /source
RUN tools/prerequisites.sh build && make -j"$(nproc)" closure
RUN tools/image-root.sh images/controller build/release/closure /image/controller && \
    tools/image-root.sh images/runtime build/release/closure /image/runtime

FROM scratch AS controller
COPY --from=build /image/controller/ /
ENV PATH=/fleetjob/bin
USER 65532:65532
ENTRYPOINT ["/fleetjob/bin/fleetjob-controller"]

FROM scratch AS runtime
COPY --from=build /image/runtime/ /
ENV PATH=/fleetjob/bin
USER 65532:65532
ENTRYPOINT ["/fleetjob/bin/fleetjob-agent"]

FROM build AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
RUN tools/cuda-toolkit.sh fetch && make -j"$(nproc)" cuda && \
    cp build/bin/libfleet_cuda.so build/release/closure/ && \
    CUDA_LIBRARIES="$(tools/cuda-toolkit.sh libraries)" \
    tools/image-root.sh images/runtime-cuda build/release/closure /image/runtime-cuda

FROM scratch AS runtime-cuda
COPY --from=build-cuda /image/runtime-cuda/ /
ENV PATH=/fleetjob/bin
USER 65532:65532
ENTRYPOINT ["/fleetjob/bin/fleetjob-agent"]
